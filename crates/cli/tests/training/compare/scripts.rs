//! `--emit`: scripts for clusters, with the programs of a cluster played by others.

use super::*;
use hadal_files::testing::skip;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

/// A folder with programs that stand for those of Slurm: `srun` starts its command, `scontrol` writes down what it is
/// asked.
fn cluster(directory: &Path) -> PathBuf {
    let programs = directory.join("programs");
    fs::create_dir(&programs).unwrap();
    let srun =
        "#!/bin/bash\nwhile [[ $1 == --* ]]; do echo \"srun $1\" >&2; shift; done\nexec \"$@\"\n";
    let scontrol = format!("#!/bin/bash\necho \"$@\" >> {}\n", directory.join("asked").display());
    for (name, script) in [("srun", srun), ("scontrol", &scontrol)] {
        fs::write(programs.join(name), script).unwrap();
        fs::set_permissions(programs.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    programs
}

fn has_bash() -> bool {
    Command::new("bash").arg("--version").output().is_ok_and(|output| output.status.success())
}

fn parses(shell: &str, script: &Path) {
    let checked = Command::new(shell).arg("-n").arg(script).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
}

/// A task of an array as Slurm starts it.
fn task(script: &Path, programs: &Path, number: usize) -> Command {
    let mut command = Command::new("bash");
    command.arg(script).stdin(Stdio::null()).env("HADAL_CACHE", "/dev/null/cache");
    let paths = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{paths}", programs.display()));
    let job = (100 + number).to_string();
    command.env("SLURM_JOB_ID", job).env("SLURM_ARRAY_JOB_ID", "100");
    command.env("SLURM_ARRAY_TASK_ID", number.to_string()).env("SLURM_CPUS_PER_TASK", "1");
    command
}

#[test]
fn the_tasks_of_a_job_array_make_the_suite_and_give_way_before_their_time_ends() {
    if !has_bash() {
        return skip("bash", "there is no bash here, which Slurm starts");
    }
    let directory = temporary();
    let suite = written(directory.path(), "seeds = [0, 1]", THREE);
    // No word of a script can be taken for another.
    let (whole, out) = (directory.path().join("whole"), directory.path().join("it's $HOME"));
    let more = ["train.steps=300"];
    let mut command = compare(&suite, &whole);
    set(&mut command, &more);
    finish(&mut command).succeeded();
    let mut command = compare(&suite, &out);
    set(&mut command, &more);
    command.args(["--emit", "slurm", "--tasks", "2", "--time", "1:00:00"]);
    let text = finish(&mut command).succeeded().stdout;
    assert!(!out.exists(), "a script is all that is made");
    for line in [
        "#SBATCH --array=1-2\n",
        "#SBATCH --cpus-per-task=1\n",
        "#SBATCH --time=1:00:00\n",
        "#SBATCH --requeue\n",
        "#SBATCH --signal=B:USR1@180\n",
        " --jobs 1 --no-wait <",
    ] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
    let blanks =
        ["@LOOK@", "@NAME@", "@TASKS@", "@CPUS@", "@TIME@", "@MEMORY@", "@HERE@", "@COMMAND@"];
    assert!(!blanks.iter().any(|blank| text.contains(blank)), "{text}");
    let script = directory.path().join("suite.sbatch");
    fs::write(&script, &text).unwrap();
    parses("bash", &script);
    let programs = cluster(directory.path());
    // The time of the first task ends: Slurm sends its shell a signal.
    let mut first = started(&mut task(&script, &programs, 1));
    let metrics = out.join("runs/prenorm-s0/metrics.jsonl");
    wait_until(&mut first, || lines(&metrics) > 3);
    send("-USR1", &first);
    let output = first.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("stopped; everything is saved"), "{said}");
    assert!(said.contains("srun --cpus-per-task=1"), "{said}");
    let asked = fs::read_to_string(directory.path().join("asked")).unwrap();
    assert_eq!(asked, "requeue 101\n");
    // A preempted one is put back by Slurm itself.
    let mut second = started(&mut task(&script, &programs, 2));
    let before = lines(&metrics);
    wait_until(&mut second, || lines(&metrics) > before + 3);
    send("-TERM", &second);
    assert_eq!(second.wait_with_output().unwrap().status.code(), Some(143));
    assert_eq!(fs::read_to_string(directory.path().join("asked")).unwrap(), "requeue 101\n");
    let tasks = [1, 2].map(|number| started(&mut task(&script, &programs, number)));
    for task in tasks {
        let output = task.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(findings(&out), findings(&whole));
}

#[test]
fn a_shell_script_starts_processes_that_stop_with_it() {
    let directory = temporary();
    let suite = written(directory.path(), "seeds = [0]", THREE);
    let (whole, out) = (directory.path().join("whole"), directory.path().join("out"));
    finish(&mut compare(&suite, &whole)).succeeded();
    let emit = ["--emit", "shell", "--tasks", "2", "--jobs", "1"];
    let text = finish(compare(&suite, &out).args(emit)).succeeded().stdout;
    let script = directory.path().join("suite.sh");
    fs::write(&script, &text).unwrap();
    parses("sh", &script);
    let start = || {
        let mut command = Command::new("sh");
        command.arg(&script).stdin(Stdio::null()).env("HADAL_CACHE", "/dev/null/cache");
        command
    };
    let mut child = started(&mut start());
    wait_until(&mut child, || out.join("runs/prenorm-s0/metrics.jsonl").exists());
    send("-TERM", &child);
    // They may have come to the end meanwhile.
    assert!(matches!(child.wait_with_output().unwrap().status.code(), Some(0 | 143)));
    let ended = start().output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(findings(&out), findings(&whole));
}

#[test]
fn a_script_that_makes_no_sense_is_refused() {
    let directory = temporary();
    let suite = written(directory.path(), "seeds = [0]\nthreads = 2", THREE);
    let out = directory.path().join("out");
    for (words, said) in [
        (&["--emit", "slurm", "--cpus-per-task", "1"][..], "each need 2"),
        (&["--emit", "slurm", "--time", "8h"], "minutes, H:MM:SS"),
        (&["--emit", "shell", "--time", "8:00:00"], "Slurm's"),
        (&["--emit", "pbs"], "slurm"),
        (&["--tasks", "3"], "--emit"),
    ] {
        finish(compare(&suite, &out).args(words)).refused(2, &[said]);
    }
    assert!(!out.exists());
    // Runs that follow from others are waited for.
    let suite = super::tune::tuned(directory.path(), super::tune::GRID);
    let text = finish(compare(&suite, &out).args(["--emit", "slurm"])).succeeded().stdout;
    assert!(text.contains(" --jobs 1 <") && text.contains("#SBATCH --array=1-4\n"), "{text}");
    assert!(!text.contains("#SBATCH --time"), "{text}");
}
