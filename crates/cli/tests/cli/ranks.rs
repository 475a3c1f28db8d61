//! What launchers of several processes meet: one message, also without MPI.

use crate::support::*;

/// A command as the process of this rank among four.
fn among_four(arguments: &[&str], rank: &str) -> std::process::Output {
    let mut command = command(arguments[0]);
    command.args(&arguments[1..]);
    command.env("OMPI_COMM_WORLD_SIZE", "4").env("OMPI_COMM_WORLD_RANK", rank);
    command.output().unwrap()
}

#[test]
fn what_is_no_work_for_several_is_refused_once() {
    for (rank, said) in [("0", "4 processes were launched together"), ("3", "")] {
        let output = among_four(&["policies"], rank);
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(said) && text.is_empty() == said.is_empty(), "{text}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn help_and_wrong_words_come_from_one_process() {
    for (arguments, code) in [(&["--version"][..], 0), (&["train", "--help"], 0), (&["tran"], 2)] {
        for rank in ["0", "1"] {
            let output = among_four(arguments, rank);
            assert_eq!(output.status.code(), Some(code), "{arguments:?}");
            let said = !output.stdout.is_empty() || !output.stderr.is_empty();
            assert_eq!(said, rank == "0", "{arguments:?} on rank {rank}");
        }
    }
}

#[cfg(not(feature = "mpi"))]
#[test]
fn several_processes_without_mpi_are_told_how_to_build_it() {
    let output = among_four(&["train"], "0");
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("built without MPI") && text.contains("--features mpi"), "{text}");
    let other = among_four(&["train"], "2");
    assert_eq!((other.status.code(), other.stderr.len()), (Some(2), 0));
}
