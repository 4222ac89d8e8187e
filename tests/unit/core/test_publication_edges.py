"""What a publication says of itself to those who ask for the status of a run."""

import pytest

from conductor.core.publication import Publication
from protocols.errors import InvariantError
from protocols.inference import WeightsManifest
from protocols.messages import PayloadRef, RegistrationKey, WeightVersion


def test_what_is_staged_is_told_until_it_is_taken() -> None:
    publication = Publication(RegistrationKey())
    assert (publication.staged, publication.served, publication.serving) == (None, None, 0)
    ref = PayloadRef(owner=publication.owner(WeightVersion(3)), key="parameters")
    manifest = WeightsManifest(version=WeightVersion(3), payload=ref, tensors=1, size_bytes=1)
    publication.stage(manifest)
    assert (publication.staged, publication.served) == (3, None)
    assert publication.take() == manifest
    publication.confirm(manifest)
    assert (publication.staged, publication.served, publication.serving) == (None, 3, 3)


def served(publication: Publication, version: int) -> WeightsManifest:
    ref = PayloadRef(owner=publication.owner(WeightVersion(version)), key="parameters")
    return WeightsManifest(version=WeightVersion(version), payload=ref, tensors=1, size_bytes=1)


def test_only_what_is_served_is_pinned_and_one_version_at_a_time() -> None:
    publication = Publication(RegistrationKey())
    with pytest.raises(InvariantError, match="vNone cannot be pinned: nothing is"):
        publication.pin()
    publication.confirm(first := served(publication, 1))
    assert publication.pin() == first
    with pytest.raises(InvariantError, match="v1 cannot be pinned"):
        publication.pin()


def test_what_is_pinned_is_handed_back_when_it_is_neither_evaluated_nor_served() -> None:
    """I73, and its contrary: weights that are still served must not be released with the pin."""
    publication = Publication(RegistrationKey())
    publication.confirm(first := served(publication, 1))
    publication.pin()
    assert publication.unpin() is None
    publication.pin()
    assert publication.confirm(served(publication, 2)) is None
    assert publication.unpin() == first
