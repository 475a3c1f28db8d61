//! Processes of MPI keep the laws, whoever is lost is named, and last words are said once.
//!
//! Each test starts this program again under mpirun, where every process runs the ignored test `a_rank`.

use hadal_ranks::{Mpi, RankError, Ranks, Settings, launch};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a process does.
const ROLE: &str = "HADAL_TEST_ROLE";

#[test]
#[ignore = "a part of the other tests"]
fn a_rank() {
    let (Ok(role), Some(launch)) = (std::env::var(ROLE), launch()) else { return };
    let settings = Settings::from_environment().unwrap();
    let settings = if role == "pieces" { Settings { piece: 1000, ..settings } } else { settings };
    let mpi = Mpi::start(launch.size, settings).unwrap();
    let end = match role.as_str() {
        "laws" | "pieces" => {
            hadal_ranks::testing::laws(&mpi);
            Ok(())
        }
        role => play(&mpi, role),
    };
    let code = match &end {
        Ok(()) => 0,
        Err(words) => {
            if mpi.farewell(Some(words)) {
                writeln!(std::io::stderr(), "said: {words}").unwrap();
            }
            7
        }
    };
    if code == 0 {
        mpi.farewell(None);
    }
    mpi.depart(code).unwrap();
    std::process::exit(code.into());
}

/// Some exchanges, in which rank 1 does something else.
fn play(mpi: &Mpi, role: &str) -> Result<(), String> {
    let words = |error: RankError| error.to_string();
    for _ in 0..3 {
        mpi.gather(&[1, 2, 3]).map_err(words)?;
    }
    match role {
        "agree" => return Err("all see the same".into()),
        "fail" if mpi.rank() == 1 => return Err("the disk is full".into()),
        "done" if mpi.rank() == 1 => return Ok(()),
        "stop" if mpi.rank() == 1 => signal("-STOP"),
        "kill" if mpi.rank() == 1 => signal("-KILL"),
        "busy" if mpi.rank() == 1 => std::thread::sleep(Duration::from_secs(4)),
        _ => {}
    }
    let parts = vec![vec![5; 3 << 20]; mpi.size()];
    mpi.exchange(parts).and_then(|exchange| exchange.finish()).map_err(words)?;
    Ok(())
}

fn signal(name: &str) {
    let process = std::process::id().to_string();
    Command::new("kill").args([name, &process]).status().unwrap();
}

/// What a job ends with, and all that it says.
struct Seen {
    code: Option<i32>,
    text: String,
    time: Duration,
}

/// Runs `ranks` processes in a role; `None` if there is no mpirun.
fn run(ranks: usize, role: &str) -> Option<Seen> {
    if Command::new("mpirun").arg("--version").output().is_err() {
        hadal_files::testing::skip("mpi", "there is no mpirun");
        return None;
    }
    let mut command = Command::new("mpirun");
    command.args(["-n", &ranks.to_string()]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "a_rank", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env("HADAL_PATIENCE", "2");
    // Open MPI 4 and 5, for a container with few cores; others know none of these.
    for (name, value) in [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("OMPI_MCA_hwloc_base_binding_policy", "none"),
        ("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),
        ("PRTE_ALLOW_RUN_AS_ROOT", "1"),
        ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
        ("PRTE_MCA_hwloc_default_binding_policy", "none"),
    ] {
        command.env(name, value);
    }
    let start = Instant::now();
    let mut job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (out, err) = (job.stdout.take().unwrap(), job.stderr.take().unwrap());
    let read = |mut pipe: Box<dyn std::io::Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let texts = [read(Box::new(out)), read(Box::new(err))];
    let code = loop {
        match job.try_wait().unwrap() {
            Some(status) => break status.code(),
            None if start.elapsed() > Duration::from_secs(60) => {
                job.kill().unwrap();
                panic!("{ranks} ranks in the role {role} hang");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let text = texts.map(|text| text.join().unwrap()).concat();
    Some(Seen { code, text, time: start.elapsed() })
}

impl Seen {
    fn says_once(&self, words: &str) {
        assert_eq!(self.text.matches("said: ").count(), 1, "{}", self.text);
        assert_eq!(self.text.matches(words).count(), 1, "{words} in {}", self.text);
    }
}

#[test]
fn processes_keep_the_laws() {
    for ranks in [2, 3, 5] {
        let Some(seen) = run(ranks, "laws") else { return };
        assert_eq!(seen.code, Some(0), "{}", seen.text);
    }
}

#[test]
fn parts_in_pieces_keep_the_laws() {
    let Some(seen) = run(3, "pieces") else { return };
    assert_eq!(seen.code, Some(0), "{}", seen.text);
}

#[test]
fn a_stopped_rank_is_named_in_time() {
    let Some(seen) = run(3, "stop") else { return };
    assert!(seen.code.is_some_and(|code| code != 0), "{}", seen.text);
    seen.says_once("said: rank 1 (process ");
    assert!(seen.text.contains(") is lost: silent for 2 s"), "{}", seen.text);
    assert!(seen.time < Duration::from_secs(20), "{:?}", seen.time);
}

#[test]
fn a_killed_rank_is_named_by_the_launcher() {
    let Some(seen) = run(3, "kill") else { return };
    assert!(seen.code.is_some_and(|code| code != 0), "{}", seen.text);
    assert!(seen.time < Duration::from_secs(20), "{:?}", seen.time);
    // Open MPI names the rank, MPICH its process and its host.
    let text = seen.text.to_lowercase();
    assert!(text.contains("rank 1") || text.contains(" running at "), "{text}");
    assert!(text.contains("signal 9") && text.contains("pid"), "{text}");
}

#[test]
fn a_busy_rank_is_waited_for() {
    let Some(seen) = run(2, "busy") else { return };
    assert_eq!(seen.code, Some(0), "{}", seen.text);
    assert!(seen.time > Duration::from_secs(4));
}

#[test]
fn what_all_fail_with_is_said_once() {
    let Some(seen) = run(3, "agree") else { return };
    assert_eq!(seen.code, Some(7), "{}", seen.text);
    seen.says_once("said: all see the same");
}

#[test]
fn what_one_fails_with_is_said_once_and_ends_all() {
    let Some(seen) = run(3, "fail") else { return };
    assert_eq!(seen.code, Some(7), "{}", seen.text);
    seen.says_once("has ended: the disk is full");
    assert!(seen.text.contains("said: rank 1 (process "), "{}", seen.text);
}

#[test]
fn who_is_done_too_early_is_named() {
    let Some(seen) = run(2, "done") else { return };
    assert_eq!(seen.code, Some(7), "{}", seen.text);
    seen.says_once("has ended: its work is done");
}
