"""The root: private, one's own, and where nobody can swap it; anything else is refused with cause and remedy."""

from __future__ import annotations

import os
import shutil
import stat
import struct
from pathlib import Path

import pytest

import nodecache
from nodecache import root as module
from nodecache import trust
from nodecache.__main__ import main
from nodecache.errors import RootError, UnsafeRoot
from nodecache.root import ensure_folders, open_root
from tests.conftest import REPOSITORY
from tests.users import PYTHON, as_root, as_user


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def chosen(path: object, monkeypatch) -> str:
    monkeypatch.setenv("NODECACHE_ROOT", str(path))
    return open_root().path


def test_the_default_root_has_the_number_of_the_user_and_nothing_else_in_its_name(monkeypatch):
    """Case 40: independent of HOME, USER, TMPDIR and TORCH_EXTENSIONS_DIR."""
    for name in ("HOME", "USER", "TMPDIR", "TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "/nonexistent")
    assert module.default_root() == f"/tmp/nodecache_{os.getuid()}"


def test_the_variable_wins_over_the_call(tmp_path, monkeypatch):
    """Case 47."""
    monkeypatch.setenv("NODECACHE_ROOT", str(tmp_path / "variable"))
    assert open_root(tmp_path / "call").path == str(tmp_path / "variable")
    monkeypatch.delenv("NODECACHE_ROOT")
    assert open_root(tmp_path / "call").path == str(tmp_path / "call")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_all_is_private_under_any_umask(umask, tiny, start, load_program, root):
    """Case 46."""
    source = tiny()
    prefix = ("sh", "-c", f'umask {umask:03o}; exec "$@"', "sh")
    assert start(load_program, "tiny", source, prefix=prefix).wait().json["role"] == "built"
    paths = [root, *root.rglob("*")]
    assert {mode(path) & 0o077 for path in paths if not path.is_symlink()} == {0}
    assert {mode(path) for path in paths if path.is_dir()} == {0o700}
    assert start(load_program, "tiny", source, prefix=prefix).wait().json["role"] == "hit"


@as_root
def test_a_root_of_another_user_is_refused_with_path_owner_and_remedy(tmp_path, monkeypatch):
    """Case 45 (a)."""
    place = tmp_path / "theirs"
    place.mkdir(0o700)
    os.chown(place, 12345, 12345)
    with pytest.raises(UnsafeRoot, match=rf"{place} belongs to uid 12345.*NODECACHE_ROOT"):
        chosen(place, monkeypatch)


def test_a_link_in_the_default_roots_place_is_refused_with_remedy(tmp_path, monkeypatch):
    """Case 45 (b)."""
    (tmp_path / "mine").mkdir(0o700)
    (tmp_path / "link").symlink_to("mine")
    monkeypatch.delenv("NODECACHE_ROOT")
    monkeypatch.setattr(module, "default_root", lambda: str(tmp_path / "link"))
    with pytest.raises(UnsafeRoot, match=r"link is a symbolic link.*rm .*NODECACHE_ROOT"):
        open_root()


def test_a_dangling_link_in_the_default_roots_place_is_refused_and_not_followed(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to("elsewhere")
    monkeypatch.delenv("NODECACHE_ROOT")
    monkeypatch.setattr(module, "default_root", lambda: str(tmp_path / "link"))
    with pytest.raises(UnsafeRoot, match="symbolic link"):
        open_root()
    assert not (tmp_path / "elsewhere").exists()


def test_a_link_above_the_default_root_is_followed(tmp_path, monkeypatch):
    """``/tmp`` itself is a link on some machines."""
    (tmp_path / "real").mkdir()
    (tmp_path / "tmp").symlink_to("real")
    monkeypatch.delenv("NODECACHE_ROOT")
    monkeypatch.setattr(module, "default_root", lambda: str(tmp_path / "tmp/nodecache_0"))
    assert open_root().path == str(tmp_path / "real/nodecache_0")


def test_ones_own_open_root_is_tightened_and_the_log_says_so(tmp_path, monkeypatch, caplog):
    """Case 45 (c)."""
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    chosen(place, monkeypatch)
    assert mode(place) == 0o700
    assert "was open to others (mode 0777)" in caplog.text


@as_root
def test_an_open_root_in_which_another_user_left_a_folder_is_refused(tmp_path, monkeypatch):
    """Case 45 (c): they could go on changing what is in it."""
    place = tmp_path / "open"
    (place / "entries").mkdir(parents=True)
    os.chown(place / "entries", 12345, 12345)
    place.chmod(0o777)
    for _ in range(2):
        with pytest.raises(UnsafeRoot, match="entries in it belongs to uid 12345"):
            chosen(place, monkeypatch)


@as_root
@pytest.mark.parametrize("file", ["recipes", "tools", "entries"])
def test_a_file_of_another_user_in_the_root_is_not_believed(file, tiny, start, load_program, root, compiler):
    source = tiny()
    nodecache.load("tiny", source)
    for path in (root / file).rglob("*"):
        if path.is_file():
            os.chown(path, 12345, 12345)
    child = start(load_program, "tiny", source).wait()
    assert child.status == 0, child.err
    assert child.json["role"] == ("hit" if file == "tools" else "built")
    assert start(load_program, "tiny", source).wait().json["role"] == "hit"


@as_root
@pytest.mark.parametrize(
    ("owner", "group", "bits", "fine"),
    [
        *((0, 0, 0o755, True), (0, 0, 0o1777, True), (0, 0, 0o777, False), (0, 12345, 0o775, False)),
        *((12345, 12345, 0o755, False), (12345, 12345, 0o1777, False), (0, 0, 0o775, True), (0, 12345, 0o1775, True)),
    ],
)
def test_a_folder_above_is_fine_where_nobody_else_can_swap_the_root(owner, group, bits, fine, tmp_path, monkeypatch):
    above = tmp_path / "above"
    above.mkdir()
    os.chown(above, owner, group)
    above.chmod(bits)
    if fine:
        assert chosen(above / "root", monkeypatch) == str(above / "root")
    else:
        with pytest.raises(UnsafeRoot, match=r"could swap it.*NODECACHE_ROOT"):
            chosen(above / "root", monkeypatch)


def test_a_private_groups_folder_above_is_fine_and_a_shared_groups_is_not(monkeypatch, tmp_path):
    """Umask 002 with a group of one's own is the default of some distributions."""
    import grp
    import pwd

    status = os.stat_result([0o040775, 0, 0, 1, 1000, 1000, 0, 0, 0, 0])
    root = module.Root("/home/u/x/root", "NODECACHE_ROOT")
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(["u", "x", uid, 1000, "", "/", "/bin/sh"]))
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(["u", "x", gid, []]))
    trust.check_above(root, str(tmp_path), status, 1000)
    for name, members in (("users", []), ("u", ["v"])):
        group = grp.struct_group([name, "x", 1000, members])
        monkeypatch.setattr(grp, "getgrgid", lambda _, group=group: group)
        with pytest.raises(UnsafeRoot):
            trust.check_above(root, str(tmp_path), status, 1000)


@as_root
def test_two_users_have_two_roots_and_cannot_reach_each_others(uid, start, load_program, tiny, open_folder):
    """Case 44: same /tmp, umask 077."""
    source = tiny(folder=open_folder)
    keys = set()
    for each in (uid, uid + 1):
        prefix = (*as_user(each), "sh", "-c", 'umask 077; exec "$@"', "sh")
        child = start(load_program, "tiny", source, prefix=prefix, python=PYTHON).wait()
        assert child.status == 0, child.err
        assert child.json["role"] == "built"
        assert child.json["path"].startswith(f"/tmp/nodecache_{each}/")
        keys.add(child.json["key"])
    assert len(keys) == 1  # who builds is not in it
    look = f"import os; os.listdir('/tmp/nodecache_{uid}')"
    assert "PermissionError" in start(look, prefix=as_user(uid + 1), python=PYTHON).wait().err


@as_root
def test_a_user_without_passwd_entry_home_or_writable_package_works(uid, start, load_program, tiny, open_folder):
    """Case 47: nothing is attempted in HOME or in the package."""
    source = tiny(folder=open_folder)
    (open_folder / "root").mkdir()
    os.chown(open_folder / "root", uid, uid)
    before = sorted(REPOSITORY.glob("nodecache/**/*.py"))
    prefix = (*as_user(uid), "HOME=/nonexistent", f"NODECACHE_ROOT={open_folder}/root")
    child = start(load_program, "tiny", source, prefix=prefix, python=PYTHON).wait()
    assert child.status == 0, child.err
    assert child.json["path"].startswith(f"{open_folder}/root/")
    assert not Path("/nonexistent").exists()
    assert not Path(f"/tmp/nodecache_{uid}").exists()
    assert sorted(REPOSITORY.glob("nodecache/**/*.py")) == before


@as_root
@pytest.mark.parametrize(
    "place", ["/proc", "/root/nodecache-test", "{folder}/closed", "{folder}/file", "{folder}/file/x"]
)
def test_an_unusable_choice_is_an_error_that_names_the_variable(place, uid, start, tiny, open_folder, load_program):
    """Case 47: no silent use of another place."""
    (open_folder / "closed").mkdir(0o500)
    os.chown(open_folder / "closed", uid, uid)
    (open_folder / "file").write_text("")
    source = tiny(folder=open_folder)
    place = place.format(folder=open_folder)
    prefix = (*as_user(uid), f"NODECACHE_ROOT={place}")
    child = start(load_program, "tiny", source, prefix=prefix, python=PYTHON).wait()
    assert child.status == 1
    last = child.err.strip().splitlines()[-1]
    assert "Root" in last.partition(":")[0]
    assert place in last
    assert "NODECACHE_ROOT" in last
    assert not Path(f"/tmp/nodecache_{uid}").exists()


@as_root
def test_a_user_namespace_in_which_other_owners_are_unmapped_works(uid, start, tiny, open_folder, load_program):
    source = tiny(folder=open_folder)
    (open_folder / "root").mkdir()
    os.chown(open_folder / "root", uid, uid)
    prefix = (*as_user(uid), f"NODECACHE_ROOT={open_folder}/root", "unshare", "--user", "--map-root-user")
    child = start(load_program, "tiny", source, prefix=prefix, python=PYTHON).wait()
    if child.err.startswith("unshare"):
        pytest.skip(f"no user namespaces here: {child.err}")
    assert child.status == 0, child.err


def test_a_root_and_its_parents_made_by_many_at_once(tmp_path, start, monkeypatch):
    """Case 13."""
    code = """\
import os, sys, time
from nodecache.root import ensure_folders, open_root
from tests.users import PYTHON, REPOSITORY, as_root, as_user
while not os.path.exists(sys.argv[1]):
    pass
for number in range(20):
    ensure_folders(open_root(f"{sys.argv[2]}/{number}/b/c/root"))
"""
    monkeypatch.delenv("NODECACHE_ROOT")
    begin = tmp_path / "begin"
    children = [start(code, begin, tmp_path / "deep") for _ in range(8)]
    begin.touch()
    for child in children:
        assert child.wait().status == 0, child.err
    assert {mode(path) for path in (tmp_path / "deep").rglob("*") if path.is_dir()} == {0o700}


def test_a_root_that_somebody_keeps_removing_is_an_error_and_no_endless_loop(tmp_path, monkeypatch):
    real = os.mkdir

    def mkdir(path, *rest):
        real(path, *rest)
        os.rmdir(path)

    monkeypatch.setattr(module.os, "mkdir", mkdir)
    with pytest.raises(RootError, match="vanishing"):
        chosen(tmp_path / "a/root", monkeypatch)


def test_a_root_that_goes_away_meanwhile_is_made_again(root):
    place = open_root()
    ensure_folders(place)
    shutil.rmtree(root)
    ensure_folders(place)
    module.replace_file(place, place.at("recipes", "r", "file"), b"x")
    shutil.rmtree(root)
    module.replace_file(place, place.at("recipes", "r", "file"), b"x")
    assert mode(root) == 0o700


def test_a_line_break_in_the_roots_name_is_refused(tmp_path, monkeypatch):
    with pytest.raises(RootError, match="line break"):
        chosen(f"{tmp_path}/a\nb", monkeypatch)


def test_a_relative_root_is_the_callers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert chosen("here", monkeypatch) == str(tmp_path / "here")


def access_list(*named: tuple[int, int, int]) -> bytes:
    """An access control list of version 2 as the kernel takes it, with ``(tag, permissions, number)`` of the named."""
    nobody = 0xFFFFFFFF
    lines = [(0x01, 7, nobody), *named, (0x04, 5, nobody), (0x10, 7, nobody), (0x20, 5, nobody)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *line) for line in sorted(lines))


@as_root
@pytest.mark.parametrize(
    ("named", "refused"),
    [
        ((0x02, 7, 1500), True),  # a user who may write
        ((0x08, 7, 1500), True),  # a group that may
        ((0x02, 5, 1500), False),  # a user who may only read
        ((0x02, 7, 0), False),  # root
    ],
)
def test_a_folder_above_into_which_an_access_control_list_lets_another_write_is_refused(
    named, refused, tmp_path, monkeypatch
):
    above = tmp_path / "above"
    above.mkdir()
    os.setxattr(above, "system.posix_acl_access", access_list(named))
    assert mode(above) == 0o775  # the list shows as rights of the group, which is root's own
    if not refused:
        assert chosen(above / "root", monkeypatch) == str(above / "root")
        return
    with pytest.raises(UnsafeRoot, match=f"access control list.*setfacl -b {above}"):
        chosen(above / "root", monkeypatch)


@pytest.mark.parametrize("where", ["recipes", "entries", "recipes/*"])
def test_a_hit_goes_through_no_folder_that_others_could_write_to(where, tiny, start, load_program, root):
    """Whoever opened it before the root was closed still can."""
    source = tiny()
    nodecache.load("tiny", [source])
    (folder,) = root.glob(where)
    folder.chmod(0o777)
    result = start(load_program, "tiny", source).wait()
    assert result.status == 1
    assert f"Others may write to {folder} (mode 0777)" in result.err
    assert f"rm -rf {root}" in result.err


@pytest.mark.parametrize("name", ["leases", "staging", "attempts", "tools"])
def test_nothing_is_built_in_a_root_with_a_folder_that_others_could_write_to(name, tiny, start, load_program, root):
    nodecache.load("tiny", [tiny()])
    (root / name).chmod(0o777)
    result = start(load_program, "other", tiny("other")).wait()
    assert result.status == 1
    assert f"Others may write to {root / name} (mode 0777)" in result.err


def test_an_entry_whose_folder_others_could_write_to_is_replaced(tiny, start, load_program, root):
    source = tiny()
    path = Path(nodecache.load("tiny", [source]).__nodecache__.path)
    path.parent.chmod(0o777)
    result = start(load_program, "tiny", source).wait()
    assert result.json["role"] == "built", result.err
    assert mode(path.parent) == 0o700
    assert start(load_program, "tiny", source).wait().json["role"] == "hit"


@pytest.mark.parametrize("name", ["attempts", "leases", "staging", "recipes"])
def test_a_file_in_the_place_of_one_of_the_roots_folders_is_named_and_costs_no_hit(
    name, tiny, start, load_program, root, capfd
):
    source = tiny()
    nodecache.load("tiny", [source])
    shutil.rmtree(root / name)
    (root / name).write_text("")
    if name != "recipes":  # without the index nothing is found
        assert start(load_program, "tiny", source).wait().json["role"] == "hit"
    result = start(load_program, "other", tiny("other")).wait()
    assert result.status == 1
    assert f"{root / name} is not a folder" in result.err
    assert f"mv {root / name} {root / name}.old" in result.err
    for command in ("status", "report", "history", "list", "stats"):
        assert main([command]) == 0, command
    assert main(["log", "tiny"]) == 0
    capfd.readouterr()
    assert main(["doctor"]) == 1
    assert f"{root / name} is not a folder" in capfd.readouterr().out
    assert main(["prune", "--all"]) == (2 if name == "leases" else 0)  # it removes nothing without a lease
    if name == "leases":
        assert f"{root / name} is not a folder" in capfd.readouterr().err
