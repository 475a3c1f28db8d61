//! What goes wrong between ranks.

use crate::Member;

/// What goes wrong between ranks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RankError {
    /// A rank does not take part any more.
    #[error("{member} is lost: {how}")]
    Lost {
        /// Who.
        member: Member,
        /// How it is known.
        how: String,
    },
    /// A rank has ended, and has said why.
    #[error("{member} has ended: {said}")]
    Ended {
        /// Who.
        member: Member,
        /// Its last words.
        said: String,
    },
    /// Several processes were launched, and this program has no MPI.
    #[error(
        "{size} processes were launched together, but this hadal was built without MPI; build it with \
         `cargo install --locked --path crates/cli --features mpi` (docs/ranks.md), or launch one process"
    )]
    WithoutMpi {
        /// How many.
        size: usize,
    },
    /// Several processes were launched, and MPI knows of another number.
    #[error(
        "{launched} processes were launched together, but MPI knows of {known}: the launcher belongs to another MPI \
         than the one that hadal was built with ({library}); use its own mpirun, or with srun `--mpi=pmix` or `--mpi=pmi2`"
    )]
    Apart {
        /// How many the launcher has started.
        launched: usize,
        /// How many MPI knows.
        known: usize,
        /// Which MPI.
        library: String,
    },
    /// A setting of the environment makes no sense.
    #[error("{name}={value} is no number of seconds above 0; take e.g. {name}=60")]
    Setting {
        /// Its name.
        name: String,
        /// What it is.
        value: String,
    },
    /// MPI itself fails.
    #[error("MPI fails: {0}")]
    Library(String),
}

impl RankError {
    /// Whether the job cannot be started like this, rather than something failing on the way.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::WithoutMpi { .. } | Self::Apart { .. } | Self::Setting { .. })
    }
}
