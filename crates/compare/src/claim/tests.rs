use super::*;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Barrier;
use std::thread::{scope, sleep};
use std::time::Instant;
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(120);
/// For processes on other machines: long enough for a busy machine to beat in time.
const SHORT: Duration = Duration::from_secs(2);
const RUN: &str = "runs/a";

fn open(suite: &TempDir, lost_after: Duration) -> Claims {
    fs::create_dir_all(suite.path().join("runs")).unwrap();
    Claims::open(suite.path(), lost_after).unwrap()
}

fn free(claims: &Claims) -> Free {
    match claims.look(RUN) {
        Look::Free(free) => free,
        other => panic!("{other:?}"),
    }
}

fn taken(claims: &Claims) -> Claim {
    claims.take(RUN, free(claims)).unwrap().unwrap()
}

fn is_held(claims: &Claims) -> bool {
    matches!(claims.look(RUN), Look::Held(_))
}

/// Moves a process to another machine, as far as others can see, and takes its thread's beat along.
fn moved_elsewhere(suite: &TempDir, claims: &Claims) -> PathBuf {
    let name = claims.me.as_ref().unwrap().name();
    let about = Process::file(suite.path(), name);
    let text = fs::read_to_string(&about).unwrap().replace(&presence::machine(), "elsewhere");
    fs::write(&about, text).unwrap();
    presence::beat_file(suite.path(), name)
}

/// Waits for what must happen, however busy the machine is.
fn until(mut happens: impl FnMut() -> bool) {
    let began = Instant::now();
    while !happens() {
        assert!(began.elapsed() < Duration::from_secs(60), "it never happens");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn of_many_that_take_a_claim_at_once_exactly_one_has_it() {
    const MANY: usize = 8;
    let suite = TempDir::new().unwrap();
    let barrier = Barrier::new(MANY);
    for round in 0..20 {
        let take = || {
            let claims = open(&suite, LONG);
            let free = free(&claims);
            assert_eq!(free.after, round);
            barrier.wait();
            let claim = claims.take(RUN, free).unwrap();
            // Nobody looks before all have tried.
            barrier.wait();
            claim.is_some()
        };
        let won = scope(|scope| {
            let takes: Vec<_> = (0..MANY).map(|_| scope.spawn(take)).collect();
            takes.into_iter().map(|take| take.join().unwrap()).filter(|won| *won).count()
        });
        assert_eq!(won, 1, "round {round}");
    }
    // What the others had begun is gone, and so are the traces of processes that ended in order.
    let left = names_in(&suite.path().join("claims/runs/a"));
    assert!(left.iter().all(|name| name.parse::<u64>().is_ok()), "{left:?}");
    assert_eq!(names_in(&suite.path().join("claims/processes")), [] as [String; 0]);
}

#[test]
fn a_claim_is_held_until_it_ends_or_is_dropped() {
    let suite = TempDir::new().unwrap();
    let (one, two) = (open(&suite, LONG), open(&suite, LONG));
    let claim = taken(&one);
    let Look::Held(by) = two.look(RUN) else { panic!("{:?}", two.look(RUN)) };
    assert!(by.is_alive && by.shown.contains(&format!("process {}", std::process::id())), "{by:?}");
    assert!(is_held(&one), "a process does not take its own claim twice");
    drop(claim);
    assert_eq!(free(&two), Free { after: 1, lost: false });
    taken(&two).end(&Ended::Done).unwrap();
    assert_eq!(free(&one), Free { after: 2, lost: false });
    // Who was told that it is free takes nothing that another one has by now.
    let late = free(&one);
    let claim = taken(&two);
    assert!(one.take(RUN, late).unwrap().is_none() && !claim.is_lost());
}

#[test]
fn a_failure_is_taken_as_it_is_by_those_who_were_there_and_tried_again_by_others() {
    let suite = TempDir::new().unwrap();
    let (one, two) = (open(&suite, LONG), open(&suite, LONG));
    let failed = Ended::Failed("it fell over".into());
    taken(&one).end(&failed).unwrap();
    assert!(matches!(two.look(RUN), Look::Ended(end, _) if end == failed));
    assert!(matches!(one.look(RUN), Look::Ended(end, _) if end == failed));
    let joins = open(&suite, LONG);
    assert!(matches!(joins.look(RUN), Look::Ended(end, _) if end == failed));
    drop(one);
    assert!(matches!(two.look(RUN), Look::Ended(..)));
    let later = open(&suite, LONG);
    assert_eq!(free(&later), Free { after: 1, lost: false });
}

/// A process that was killed holds no lock any more.
#[test]
fn a_dead_process_of_this_machine_loses_its_claims_at_once() {
    let suite = TempDir::new().unwrap();
    let (mut one, two) = (open(&suite, LONG), open(&suite, LONG));
    let claim = taken(&one);
    assert!(is_held(&two));
    let name = one.me.as_ref().unwrap().name().to_owned();
    let about = Process::file(suite.path(), &name);
    let text = fs::read(&about).unwrap();
    // Its traces stay, without the lock.
    one.me = None;
    fs::write(&about, text).unwrap();
    assert_eq!(free(&two), Free { after: 1, lost: true });
    let new = taken(&two);
    assert!(claim.is_lost() && !new.is_lost());
    // Whatever the loser says comes too late.
    claim.end(&Ended::Failed("late".into())).unwrap();
    assert!(is_held(&two) && !new.is_lost());
}

#[test]
fn a_process_of_another_machine_is_judged_by_its_beat_alone() {
    let suite = TempDir::new().unwrap();
    let (one, two) = (open(&suite, SHORT), open(&suite, SHORT));
    let _claim = taken(&one);
    let beat = moved_elsewhere(&suite, &one);
    let Look::Held(by) = two.look(RUN) else { panic!("{:?}", two.look(RUN)) };
    assert!(!by.is_alive, "one look tells nothing");
    until(|| matches!(two.look(RUN), Look::Held(by) if by.is_alive));
    // As long as it beats it is alive, whatever the clocks of the two machines say.
    fs::File::open(&beat).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let began = Instant::now();
    while began.elapsed() < SHORT + SHORT / 2 {
        assert!(is_held(&two));
        sleep(SHORT / 20);
    }
}

#[test]
fn a_process_of_another_machine_that_does_not_beat_loses_its_claims_in_time_and_not_before() {
    let suite = TempDir::new().unwrap();
    // It beats four times a minute.
    let (one, two) = (open(&suite, LONG), open(&suite, SHORT));
    let claim = taken(&one);
    let beat = moved_elsewhere(&suite, &one);
    let about = Process::file(suite.path(), one.me.as_ref().unwrap().name());
    assert!(is_held(&two));
    for _ in 0..3 {
        sleep(SHORT / 2);
        assert!(is_held(&two));
    }
    sleep(SHORT);
    assert!(is_held(&two), "who says that it beats slowly is given time");
    let text = fs::read_to_string(&about).unwrap().replace("15.0", "0.1");
    fs::write(&about, text).unwrap();
    // A sign of life starts the time anew.
    OpenOptions::new().append(true).open(beat).unwrap().write_all(b"1").unwrap();
    let began = Instant::now();
    assert!(is_held(&two));
    until(|| !is_held(&two));
    assert!(began.elapsed() >= SHORT);
    assert_eq!(free(&two), Free { after: 1, lost: true });
    drop(taken(&two));
    assert!(claim.is_lost());
}

/// Time in which nobody looked does not count: machines sleep.
#[test]
fn two_looks_long_after_each_other_are_no_reason_to_take_over() {
    let suite = TempDir::new().unwrap();
    let short = Duration::from_millis(400);
    let (one, two) = (open(&suite, LONG), open(&suite, short));
    let _claim = taken(&one);
    moved_elsewhere(&suite, &one);
    let about = Process::file(suite.path(), one.me.as_ref().unwrap().name());
    let text = fs::read_to_string(&about).unwrap().replace("15.0", "0.01");
    fs::write(&about, text).unwrap();
    assert!(is_held(&two));
    sleep(3 * short);
    assert!(is_held(&two));
}

#[cfg(unix)]
#[test]
fn who_has_lost_a_claim_reaches_the_folder_neither_by_its_path_nor_by_open_logs() {
    let suite = TempDir::new().unwrap();
    let (one, two) = (open(&suite, LONG), open(&suite, LONG));
    let lost = taken(&one);
    lost.enter().unwrap();
    let way = lost.way().to_owned();
    assert!(way.starts_with(suite.path().join("claims")) && way.ends_with("a"));
    fs::write(way.join("config.toml"), "mine").unwrap();
    fs::create_dir(way.join("checkpoints")).unwrap();
    let mut log =
        OpenOptions::new().create(true).append(true).open(way.join("metrics.jsonl")).unwrap();
    log.write_all(b"one\n").unwrap();
    let run = suite.path().join(RUN);
    assert_eq!(fs::read_to_string(run.join("config.toml")).unwrap(), "mine");
    let new = two.take(RUN, Free { after: 1, lost: true }).unwrap().unwrap();
    new.enter().unwrap();
    assert_eq!(fs::read_to_string(run.join("metrics.jsonl")).unwrap(), "one\n");
    log.write_all(b"two\n").unwrap();
    assert!(hadal_files::write_whole(&way.join("outcome.json"), "{}").is_err());
    assert!(hadal_files::create_directory(&way.join("checkpoints/step-1")).is_err());
    assert!(fs::rename(way.join("config.toml"), way.join("b")).is_err());
    assert!(hadal_files::StagedDirectory::create(&way.join("model")).is_err());
    assert_eq!(fs::read_to_string(run.join("metrics.jsonl")).unwrap(), "one\n");
    // The new one does reach it.
    fs::write(new.way().join("metrics.jsonl"), "three\n").unwrap();
    assert_eq!(fs::read_to_string(run.join("metrics.jsonl")).unwrap(), "three\n");
    let names: BTreeSet<String> = names_in(&run).into_iter().collect();
    assert_eq!(names, ["checkpoints", "config.toml", "metrics.jsonl"].map(String::from).into());
}

/// Whoever holds one of these files was not written by this program.
#[test]
fn hostile_claims_are_held_and_lost_like_others_and_never_a_panic() {
    let suite = TempDir::new().unwrap();
    let claims = open(&suite, Duration::from_millis(200));
    for (number, (holder, end)) in [
        ("", "{"),
        ("../../../etc/passwd 3", "{\"state\": \"burnt\"}"),
        ("\u{0}", "[]"),
        ("nobody 1", "{\"state\": \"done\", \"said\": 7}"),
    ]
    .into_iter()
    .enumerate()
    {
        let claim = suite.path().join("claims").join(RUN).join((3 * number + 5).to_string());
        fs::create_dir_all(&claim).unwrap();
        fs::write(claim.join(HOLDER), holder).unwrap();
        fs::write(claim.join(END), end).unwrap();
        until(|| matches!(claims.look(RUN), Look::Free(_)));
        drop(taken(&claims));
    }
    // A number that nobody can have counted up to.
    let last = suite.path().join("claims").join(RUN).join(u64::MAX.to_string());
    fs::create_dir_all(last).unwrap();
    drop(taken(&claims));
}
