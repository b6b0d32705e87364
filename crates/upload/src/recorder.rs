//! Writes the journal into the store while the copy goes on.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use object_store::UpdateVersion;

use crate::error::Result;
use crate::ledger::{Begun, Ledger};
use crate::prefix::Prefix;
use crate::sync::lock::Mutex;

/// Time between two records: a killed process loses at most about as much progress.
const INTERVAL: Duration = Duration::from_secs(2);

/// Time between two looks at whether one is due.
const STEP: Duration = Duration::from_millis(200);

/// Journal of the copy that runs.
#[derive(Debug)]
pub(crate) struct Recorder {
    prefix: Arc<Prefix>,
    /// With whether the store lacks some of it.
    ledger: Mutex<(Ledger, bool)>,
    /// State of the journal in the store. Held while it is written.
    version: Mutex<UpdateVersion>,
}

impl Recorder {
    /// Takes a journal that is in the store.
    pub(crate) fn new(prefix: &Arc<Prefix>, ledger: Ledger, version: UpdateVersion) -> Self {
        Self {
            prefix: Arc::clone(prefix),
            ledger: Mutex::new((ledger, false)),
            version: Mutex::new(version),
        }
    }

    /// Returns what is known of a file.
    pub(crate) fn begun(&self, name: &str) -> Option<Begun> {
        self.ledger.lock().0.files.get(name).cloned()
    }

    /// Changes what is known of a file; the next record has it.
    pub(crate) fn note(&self, name: &str, change: impl FnOnce(&mut Begun)) {
        let mut ledger = self.ledger.lock();
        if let Some(begun) = ledger.0.files.get_mut(name) {
            change(begun);
            ledger.1 = true;
        }
    }

    /// Adds a file.
    pub(crate) fn add(&self, name: &str, begun: Begun) {
        let mut ledger = self.ledger.lock();
        ledger.0.files.insert(name.to_owned(), begun);
        ledger.1 = true;
    }

    /// Forgets a file.
    pub(crate) fn forget(&self, name: &str) {
        let mut ledger = self.ledger.lock();
        ledger.0.files.remove(name);
        ledger.1 = true;
    }

    /// Returns the journal.
    pub(crate) fn ledger(&self) -> Ledger {
        self.ledger.lock().0.clone()
    }

    /// Writes the journal, unless the store has it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`](crate::error::ErrorKind::Changed) if another copy goes on with it.
    pub(crate) fn record(&self) -> Result<()> {
        let mut version = self.version.lock();
        let ledger = {
            let mut ledger = self.ledger.lock();
            if !std::mem::replace(&mut ledger.1, false) {
                return Ok(());
            }
            ledger.0.clone()
        };
        let claimed = self.prefix.claim(&ledger, Some(version.clone()));
        if claimed.is_err() {
            self.ledger.lock().1 = true;
        }
        *version = claimed?;
        Ok(())
    }

    /// Writes the journal every few seconds, until the copy has ended.
    pub(crate) fn record_until(&self, ended: &Receiver<()>) -> Result<()> {
        let mut last = Instant::now();
        while ended.recv_timeout(STEP) == Err(RecvTimeoutError::Timeout) {
            if last.elapsed() >= INTERVAL {
                self.record()?;
                last = Instant::now();
            }
        }
        Ok(())
    }
}
