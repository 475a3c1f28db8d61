//! What a launcher of several processes leaves in their environment.

/// A process among those that a launcher has started together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Which of them this is: 0, 1, ...
    pub rank: usize,
    /// How many there are.
    pub size: usize,
}

/// Variables for the number of processes and for one's own: Open MPI; MPICH, Intel MPI and `srun --mpi=pmi2`; MVAPICH;
/// any `srun`. The first pair that is there counts, since mpirun may itself have been started by srun.
const VARIABLES: [(&str, &str); 4] = [
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
];

/// How this process was launched, if it was by mpirun, mpiexec or srun.
pub fn launch() -> Option<Launch> {
    said(&|name| std::env::var(name).ok())
}

fn said(variable: &dyn Fn(&str) -> Option<String>) -> Option<Launch> {
    let number = |name| variable(name)?.trim().parse().ok();
    VARIABLES.iter().find_map(|(size, rank)| {
        let (rank, size): (usize, usize) = (number(rank)?, number(size)?);
        (rank < size).then_some(Launch { rank, size })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Option<Launch> {
        said(&|name| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).into())
        })
    }

    #[test]
    fn every_launcher_is_known() {
        for (size, rank) in VARIABLES {
            assert_eq!(with(&[(size, "4"), (rank, "3")]), Some(Launch { rank: 3, size: 4 }));
        }
        assert_eq!(with(&[]), None);
    }

    #[test]
    fn mpirun_within_srun_counts() {
        let variables = [
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_PROCID", "1"),
            ("OMPI_COMM_WORLD_SIZE", "8"),
            ("OMPI_COMM_WORLD_RANK", "5"),
        ];
        assert_eq!(with(&variables), Some(Launch { rank: 5, size: 8 }));
    }

    #[test]
    fn nonsense_is_no_launcher() {
        for (size, rank) in [("four", "1"), ("4", ""), ("2", "2"), ("0", "0"), ("-1", "0")] {
            assert_eq!(with(&[("PMI_SIZE", size), ("PMI_RANK", rank)]), None, "{size} {rank}");
        }
    }
}
