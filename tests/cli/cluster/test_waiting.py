"""Waiting for a component sees what is there, not what was."""

import socket
from pathlib import Path

from tidewheel.cli.cluster.waiting import listens


def test_a_socket_file_that_a_killed_process_left_is_not_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "runtime.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert listens(path)
    assert path.is_socket()
    assert not listens(path)


def test_nothing_listens_where_there_is_no_file(tmp_path: Path) -> None:
    assert not listens(tmp_path / "none.sock")
