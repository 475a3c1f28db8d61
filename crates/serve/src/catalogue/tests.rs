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
    catalogue.looked = None;
    catalogue.refresh();
}

fn steps(catalogue: &Catalogue) -> Vec<(String, u64)> {
    catalogue.runs().map(|(id, entry)| (id.clone(), entry.summary.step)).collect()
}

#[test]
fn runs_appear_change_and_vanish() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "a", 1);
    let mut catalogue = Catalogue::open(root.path());
    assert_eq!(steps(&catalogue), [("a".into(), 1)]);
    let before = catalogue.revision();
    again(&mut catalogue);
    assert_eq!(catalogue.revision(), before);
    run(root.path(), "b", 2);
    run(root.path(), "a", 4);
    catalogue.runs.get_mut("a").unwrap().not_before = Instant::now();
    again(&mut catalogue);
    assert_eq!(steps(&catalogue), [("a".into(), 4), ("b".into(), 2)]);
    assert!(catalogue.revision() > before);
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
    assert!(catalogue.index_trouble().is_none());
    let known = Store::open(root.path()).unwrap().load().unwrap();
    assert_eq!(known["a"].1.step, 3);
}

#[test]
fn an_index_that_is_damaged_is_replaced() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "a", 3);
    let file = root.path().join(store::FILE);
    drop(Catalogue::open(root.path()));
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 4;
    bytes[middle..].fill(0xa5);
    for damage in [b"this is no index at all".to_vec(), vec![0; 5000], bytes] {
        fs::write(&file, damage).unwrap();
        let catalogue = Catalogue::open(root.path());
        assert_eq!(steps(&catalogue), [("a".into(), 3)]);
        drop(catalogue);
        let mut catalogue = Catalogue::open(root.path());
        again(&mut catalogue);
        assert_eq!(catalogue.index_trouble(), None);
    }
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
    assert!(catalogue.index_trouble().unwrap().contains("locked"));
    drop((catalogue, other));
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let catalogue = Catalogue::open(root.path());
    assert_eq!(steps(&catalogue), [("a".into(), 3)]);
    assert!(catalogue.index_trouble().is_some());
}

#[test]
fn an_index_of_another_layout_is_made_anew() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "a", 3);
    let other = rusqlite::Connection::open(root.path().join(store::FILE)).unwrap();
    other.execute_batch("create table runs (what); pragma user_version = 99").unwrap();
    drop(other);
    let catalogue = Catalogue::open(root.path());
    assert_eq!(catalogue.index_trouble(), None);
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
    let catalogue = Catalogue::open(root.path());
    let reason = |id: &str| catalogue.run(id).unwrap().summary.reason.clone().unwrap();
    assert!(reason("settings").starts_with("config.toml is damaged"));
    assert!(reason("metrics").starts_with("metrics.jsonl is damaged at byte 0"));
    assert!(reason("none").starts_with("no config.toml"));
    assert!(catalogue.runs().all(|(_, entry)| entry.summary.status == Standing::Broken));
}
