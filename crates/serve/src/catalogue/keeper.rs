//! Looks at the folder on a thread of its own, so that no request waits for a file that another page needs.

use super::{Catalogue, Snapshot};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Looking at the disk again sooner than this would show nothing new to a person.
const FRESH: Duration = Duration::from_millis(900);
/// A look that takes longer than this is not waited for: the last snapshot is shown.
const PATIENCE: Duration = Duration::from_secs(2);

/// The latest snapshot, and a way to ask for a newer one.
pub(crate) struct Keeper {
    latest: watch::Receiver<(Instant, Arc<Snapshot>)>,
    wish: SyncSender<()>,
    /// Somebody has waited in vain for the look that is under way.
    is_late: Arc<AtomicBool>,
}

impl Keeper {
    /// Looks at a folder and starts the thread. It ends when the keeper is dropped.
    pub(crate) fn start(root: &Path) -> io::Result<Self> {
        let mut catalogue = Catalogue::open(root);
        Self::with(catalogue.now().clone(), move || {
            catalogue.look();
            catalogue.now().clone()
        })
    }

    fn with(
        first: Snapshot,
        mut look: impl FnMut() -> Snapshot + Send + 'static,
    ) -> io::Result<Self> {
        let (publish, latest) = watch::channel((Instant::now(), Arc::new(first)));
        let (wish, wishes) = sync_channel(1);
        let is_late = Arc::new(AtomicBool::new(false));
        let late = Arc::clone(&is_late);
        std::thread::Builder::new().name("catalogue".into()).spawn(move || {
            while wishes.recv().is_ok() {
                let (at, mut snapshot) = publish.borrow().clone();
                let mut looked = at;
                if at.elapsed() >= FRESH {
                    snapshot = Arc::new(look());
                    looked = Instant::now();
                }
                late.store(false, Ordering::Relaxed);
                if publish.send((looked, snapshot)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { latest, wish, is_late })
    }

    /// What was there at the last look.
    pub(crate) fn latest(&self) -> Arc<Snapshot> {
        Arc::clone(&self.latest.borrow().1)
    }

    /// What is there now, unless looking takes too long.
    pub(crate) async fn fresh(&self) -> Arc<Snapshot> {
        let mut latest = self.latest.clone();
        if latest.borrow_and_update().0.elapsed() >= FRESH {
            // If the channel is full, somebody has just asked for the same.
            let _ = self.wish.try_send(());
            if !self.is_late.load(Ordering::Relaxed)
                && tokio::time::timeout(PATIENCE, latest.changed()).await.is_err()
            {
                self.is_late.store(true, Ordering::Relaxed);
            }
        }
        Arc::clone(&latest.borrow().1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_look_that_hangs_stops_no_page() {
        let (go_on, hangs) = channel::<()>();
        let keeper = Keeper::with(Snapshot::default(), move || {
            let _ = hangs.recv();
            Snapshot { revision: 7, ..Snapshot::default() }
        });
        let keeper = keeper.unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            tokio::time::sleep(FRESH).await;
            assert_eq!(keeper.fresh().await.revision, 0);
            // From now on nobody waits.
            let all = futures_util::future::join_all((0..1000).map(|_| keeper.fresh()));
            let all = tokio::time::timeout(PATIENCE, all).await.unwrap();
            assert!(all.iter().all(|snapshot| snapshot.revision == 0));
            go_on.send(()).unwrap();
            while keeper.fresh().await.revision != 7 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }
}
