use super::*;
use std::fs;

fn run(root: &Path, name: &str, steps: u64) -> PathBuf {
    let folder = root.join(name);
    fs::create_dir_all(&folder).unwrap();
    fs::write(
        folder.join("config.toml"),
        "seed = 3\n[train]\nsteps = 9\n[residual]\nkind = \"mgr\"\n",
    )
    .unwrap();
    let line = |step: u64| {
        format!(
            "{{\"kind\":\"train\",\"step\":{step},\"loss\":2.0,\"gradient_norm\":null,\"rate\":1.0,\
             \"tokens\":{step},\"tokens_per_second\":5.0}}\n"
        )
    };
    fs::write(folder.join("metrics.jsonl"), (1..=steps).map(line).collect::<String>()).unwrap();
    folder
}

fn again(catalogue: &mut Catalogue) {
    catalogue.look();
}

fn steps(catalogue: &Catalogue) -> Vec<(String, u64)> {
    catalogue.now().summaries().map(|run| (run.id.clone(), run.step)).collect()
}

fn trouble(catalogue: &Catalogue) -> Option<&str> {
    catalogue.now().index_trouble.as_deref()
}

#[test]
fn runs_appear_change_and_vanish() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "a", 1);
    let mut catalogue = Catalogue::open(root.path());
    assert_eq!(steps(&catalogue), [("a".into(), 1)]);
    let before = catalogue.now().revision;
    again(&mut catalogue);
    assert_eq!(catalogue.now().revision, before);
    run(root.path(), "b", 2);
    run(root.path(), "a", 4);
    catalogue.read.get_mut("a").unwrap().not_before = Instant::now();
    again(&mut catalogue);
    assert_eq!(steps(&catalogue), [("a".into(), 4), ("b".into(), 2)]);
    assert!(catalogue.now().revision > before);
    fs::remove_dir_all(root.path().join("a")).unwrap();
    again(&mut catalogue);
    assert_eq!(steps(&catalogue), [("b".into(), 2)]);
}

#[test]
fn the_index_saves_reading_what_has_not_changed() {
    let root = tempfile::tempdir().unwrap();
    let folder = run(root.path(), "a", 3);
    drop(Catalogue::open(root.path()));
    // The same size and time, but unreadable contents: only an index can know the summary.
    let file = folder.join("metrics.jsonl");
    let (length, time) =
        (fs::metadata(&file).unwrap().len(), fs::metadata(&file).unwrap().modified());
    fs::write(&file, vec![b'x'; usize::try_from(length).unwrap()]).unwrap();
    fs::File::options().write(true).open(&file).unwrap().set_modified(time.unwrap()).unwrap();
    let catalogue = Catalogue::open(root.path());
    assert_eq!(steps(&catalogue), [("a".into(), 3)]);
}

#[test]
fn an_index_that_is_deleted_is_made_again() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "a", 3);
    let mut catalogue = Catalogue::open(root.path());
    let file = root.path().join(store::FILE);
    assert!(file.exists());
    fs::remove_file(&file).unwrap();
    again(&mut catalogue);
    assert!(trouble(&catalogue).is_none());
    let known = Store::open(root.path()).unwrap().load().unwrap();
    assert_eq!(known["a"].1.step, 3);
}

#[test]
fn an_index_that_is_damaged_is_replaced() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "a", 3);
    let file = root.path().join(store::FILE);
    drop(Catalogue::open(root.path()));
    let whole = fs::read(&file).unwrap();
    for start in [100, whole.len() / 4, whole.len() - 4000] {
        let mut bytes = whole.clone();
        bytes[start..].fill(0xa5);
        fs::write(&file, bytes).unwrap();
        let catalogue = Catalogue::open(root.path());
        assert_eq!(steps(&catalogue), [("a".into(), 3)]);
        drop(catalogue);
        let mut catalogue = Catalogue::open(root.path());
        again(&mut catalogue);
        assert_eq!(trouble(&catalogue), None);
    }
}

/// A file of the index's name that somebody else made.
fn is_left_alone(root: &Path, name: &str, bytes: &[u8]) {
    let file = root.join(name);
    fs::write(&file, bytes).unwrap();
    let mut catalogue = Catalogue::open(root);
    again(&mut catalogue);
    assert_eq!(steps(&catalogue), [("a".into(), 3)]);
    assert!(trouble(&catalogue).unwrap().contains("stays as it is"));
    drop(catalogue);
    assert!(fs::read(&file).unwrap() == bytes, "{name} was changed");
    fs::remove_file(file).unwrap();
}

#[test]
fn a_file_that_is_not_our_index_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "a", 3);
    let other = root.path().join("other");
    let connection = rusqlite::Connection::open(&other).unwrap();
    connection
        .execute_batch(
            "create table runs (mine); insert into runs values (1); pragma user_version = 1",
        )
        .unwrap();
    drop(connection);
    let theirs = fs::read(&other).unwrap();
    for bytes in [b"this is no index at all".as_slice(), &[0; 5000], b"", &theirs] {
        is_left_alone(root.path(), store::FILE, bytes);
    }
    for suffix in ["-journal", "-wal", "-shm"] {
        is_left_alone(root.path(), &format!("{}{suffix}", store::FILE), b"somebody's");
    }
    // The name of earlier versions.
    let old = root.path().join("runs.sqlite");
    fs::write(&old, &theirs).unwrap();
    assert_eq!(trouble(&Catalogue::open(root.path())), None);
    assert_eq!(fs::read(&old).unwrap(), theirs);
}

#[test]
fn a_link_in_the_place_of_the_index_is_not_followed() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "a", 3);
    // Even a real index elsewhere.
    let elsewhere = tempfile::tempdir().unwrap();
    drop(Catalogue::open(elsewhere.path()));
    let target = elsewhere.path().join(store::FILE);
    let before = fs::read(&target).unwrap();
    let place = root.path().join(store::FILE);
    std::os::unix::fs::symlink(&target, &place).unwrap();
    let catalogue = Catalogue::open(root.path());
    assert_eq!(steps(&catalogue), [("a".into(), 3)]);
    assert!(trouble(&catalogue).is_some());
    assert!(fs::symlink_metadata(&place).unwrap().is_symlink());
    assert_eq!(fs::read(&target).unwrap(), before);
    fs::remove_file(&target).unwrap();
    drop(Catalogue::open(root.path()));
    assert!(!target.exists(), "a file was made at the end of the link");
}

#[test]
fn a_folder_behind_a_link_has_an_index() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "runs/a", 3);
    let link = root.path().join("link");
    std::os::unix::fs::symlink(root.path().join("runs"), &link).unwrap();
    assert_eq!(trouble(&Catalogue::open(&link)), None);
}

#[test]
fn an_index_that_is_locked_or_cannot_be_a_file_is_done_without() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "a", 3);
    let file = root.path().join(store::FILE);
    drop(Catalogue::open(root.path()));
    let other = rusqlite::Connection::open(&file).unwrap();
    other.execute_batch("begin exclusive").unwrap();
    let catalogue = Catalogue::open(root.path());
    assert_eq!(steps(&catalogue), [("a".into(), 3)]);
    assert!(trouble(&catalogue).unwrap().contains("locked"));
    drop((catalogue, other));
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let catalogue = Catalogue::open(root.path());
    assert_eq!(steps(&catalogue), [("a".into(), 3)]);
    assert!(trouble(&catalogue).is_some());
}

#[test]
fn an_index_of_another_layout_is_made_anew() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "a", 3);
    drop(Catalogue::open(root.path()));
    let index = rusqlite::Connection::open(root.path().join(store::FILE)).unwrap();
    index
        .execute_batch("drop table runs; create table runs (what); pragma user_version = 99")
        .unwrap();
    drop(index);
    let catalogue = Catalogue::open(root.path());
    assert_eq!(trouble(&catalogue), None);
    assert_eq!(steps(&catalogue), [("a".into(), 3)]);
}

#[test]
fn broken_runs_are_listed_with_the_reason() {
    let root = tempfile::tempdir().unwrap();
    let folder = run(root.path(), "settings", 1);
    fs::write(folder.join("config.toml"), "seed = = 3").unwrap();
    let folder = run(root.path(), "metrics", 1);
    fs::write(folder.join("metrics.jsonl"), "{\n").unwrap();
    let folder = run(root.path(), "none", 1);
    fs::remove_file(folder.join("config.toml")).unwrap();
    let folder = run(root.path(), "huge", 1);
    fs::File::create(folder.join("metrics.jsonl")).unwrap().set_len(1 << 30).unwrap();
    let catalogue = Catalogue::open(root.path());
    let run = |id: &str| &catalogue.now().runs[id].summary;
    let reason = |id: &str| run(id).reason.clone().unwrap();
    assert!(reason("settings").starts_with("config.toml is damaged"));
    assert!(reason("none").starts_with("no config.toml"));
    assert!(reason("huge").contains("not shown"));
    for broken in ["settings", "none", "huge"] {
        assert_eq!(run(broken).status, Standing::Broken);
    }
    assert!(reason("metrics").starts_with("metrics.jsonl is damaged at byte 0"));
    assert_eq!(run("metrics").status, Standing::Stopped);
}
