"""One authority decides what is published; the newest wins."""

import pytest

from conductor.core.publication import Publication
from protocols.errors import InvariantError
from protocols.inference import WeightsManifest
from protocols.messages import PayloadRef, RegistrationKey, WeightVersion


def manifest(version: int) -> WeightsManifest:
    ref = PayloadRef(owner=f"w/{version}", key="all")
    return WeightsManifest(version=WeightVersion(version), payload=ref, tensors=1, size_bytes=4)


def test_weights_that_were_overtaken_are_handed_back_for_release() -> None:
    """I73: nothing that is superseded may go on holding memory."""
    publication = Publication(RegistrationKey())
    assert publication.stage(manifest(1)) is None
    assert publication.stage(manifest(2)) == manifest(1)
    assert publication.take() == manifest(2)
    assert publication.take() is None
    assert publication.confirm(manifest(2)) is None
    assert publication.confirm(manifest(3)) == manifest(2)


def test_versions_only_grow() -> None:
    """WeightVersion is strictly increasing and never reused."""
    publication = Publication(RegistrationKey())
    publication.confirm(manifest(3))
    with pytest.raises(InvariantError, match="v3 staged after v3"):
        publication.stage(manifest(3))


def test_releasing_one_version_does_not_release_another() -> None:
    """Owners are released by prefix: v1 must be no prefix of v10."""
    publication = Publication(RegistrationKey())
    assert not publication.owner(WeightVersion(10)).startswith(publication.owner(WeightVersion(1)))


def test_weights_that_are_staged_again_are_published_again_and_released_once() -> None:
    """They have the owner that they had before: to release that would take what was just put there."""
    publication = Publication(RegistrationKey())
    publication.stage(manifest(1))
    publication.confirm(first := publication.take() or manifest(0))
    assert publication.pin() is first
    publication.stage_again(manifest(1))
    assert publication.confirm(again := publication.take() or manifest(0)) is None
    assert publication.unpin() is None, "they are still served"
    assert publication.confirm(manifest(2)) is again


def test_only_the_newest_weights_are_staged_again() -> None:
    """The trainer has no others."""
    publication = Publication(RegistrationKey())
    publication.stage(manifest(2))
    with pytest.raises(InvariantError, match="v1 staged again after v2"):
        publication.stage_again(manifest(1))
