"""The file in which a judge says where it is."""

from pathlib import Path

from headrace.protocol.messages.judges import (
    JudgeAddress,
    forget_address,
    read_address,
    write_address,
)


def test_an_address_is_for_its_owner_alone_and_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "judges"
    assert read_address(folder, "fair") is None
    for port in (1, 2):
        address = JudgeAddress(f"http://127.0.0.1:{port}/v1", "fair", "secret", 7)
        write_address(folder, "fair", address)
        assert read_address(folder, "fair") == address
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("{")
    assert read_address(folder, "fair") is None
    for _ in range(2):
        forget_address(folder, "fair")
    assert list(folder.iterdir()) == []
