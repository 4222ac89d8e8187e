"""Order where Ray keeps none: a cancellation may overtake the call that it is for, and may come after its end."""


class Withdrawals:
    """Which calls were taken back before they came. Calls are numbered from 0 without a gap, and come in any order."""

    def __init__(self) -> None:
        self._all_below = 0
        self._arrived: set[int] = set()  # of those that are not below
        self._withdrawn: set[int] = set()

    def arrive(self, number: int) -> bool:
        """Note that a call has come; returns whether it is still wanted."""
        self._arrived.add(number)
        while self._all_below in self._arrived:
            self._arrived.remove(self._all_below)
            self._all_below += 1
        wanted = number not in self._withdrawn
        self._withdrawn.discard(number)
        return wanted

    def withdraw(self, number: int) -> None:
        """Note that a call is not wanted any more; of one that has come already nothing is kept."""
        if number >= self._all_below and number not in self._arrived:
            self._withdrawn.add(number)
