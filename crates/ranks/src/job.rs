//! The job that this process belongs to.

use crate::{Alone, RankError, Ranks, launch};
use std::sync::Arc;

/// The ranks that this process was launched among: by mpirun, mpiexec or srun, else alone.
///
/// A program that calls this ends with [`farewell`] and [`depart`].
pub fn job() -> Result<Arc<dyn Ranks>, RankError> {
    match launch() {
        Some(launched) if launched.size > 1 => several(launched.size),
        _ => Ok(Arc::new(Alone)),
    }
}

/// This process leaves its job, with these last words if it fails. Whether it should say them: not if another rank says the
/// same.
pub fn farewell(words: Option<&str>) -> bool {
    #[cfg(feature = "mpi")]
    if let Some(mpi) = JOB.get() {
        return mpi.farewell(words);
    }
    // Ranks that do not know each other fail for the same reason.
    let speaks = launch().is_none_or(|launched| launched.rank == 0);
    if !speaks && words.is_some() {
        // A launcher ends all as soon as one fails.
        std::thread::sleep(FIRST_WORD);
    }
    speaks
}

/// How long rank 0 has to say why, where ranks do not know each other.
const FIRST_WORD: std::time::Duration = std::time::Duration::from_secs(1);

/// Ends what [`job`] has started, before the process ends with this code. It may end here and now, with all ranks, if one is
/// lost or goes on.
pub fn depart(code: u8) -> Result<(), RankError> {
    #[cfg(feature = "mpi")]
    if let Some(mpi) = JOB.get() {
        return mpi.depart(code);
    }
    let _ = code;
    Ok(())
}

#[cfg(feature = "mpi")]
static JOB: std::sync::OnceLock<Arc<crate::Mpi>> = std::sync::OnceLock::new();

#[cfg(feature = "mpi")]
fn several(size: usize) -> Result<Arc<dyn Ranks>, RankError> {
    if let Some(mpi) = JOB.get() {
        return Ok(Arc::clone(mpi) as _);
    }
    let mpi = Arc::new(crate::Mpi::start(size, crate::Settings::from_environment()?)?);
    Ok(Arc::clone(JOB.get_or_init(|| mpi)) as _)
}

#[cfg(not(feature = "mpi"))]
fn several(size: usize) -> Result<Arc<dyn Ranks>, RankError> {
    Err(RankError::WithoutMpi { size })
}
