"""What a publication says of itself to those who ask for the status of a run."""

from conductor.core.publication import Publication
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
