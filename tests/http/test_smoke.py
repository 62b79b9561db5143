from tests.support.server import PHOTOS, Server


def test_cat(embedded: Server) -> None:
    answer = embedded.client.post("/predict/classify", files={"file": (PHOTOS / "chelsea.png").read_bytes()})
    assert answer.json()["labels"][0]["label"] == "Egyptian cat"
