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
        let first = Arc::new(catalogue.now().clone());
        let (publish, latest) = watch::channel((Instant::now(), first));
        let (wish, wishes) = sync_channel(1);
        let is_late = Arc::new(AtomicBool::new(false));
        let late = Arc::clone(&is_late);
        std::thread::Builder::new().name("catalogue".into()).spawn(move || {
            while wishes.recv().is_ok() {
                let (at, mut snapshot) = publish.borrow().clone();
                let mut looked = at;
                if at.elapsed() >= FRESH {
                    catalogue.look();
                    looked = Instant::now();
                    snapshot = Arc::new(catalogue.now().clone());
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
