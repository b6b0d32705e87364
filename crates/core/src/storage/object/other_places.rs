//! Bytes of an object that came from elsewhere than its origin and turned out to be wrong.

use std::ops::Range;
use std::sync::Arc;

use tokio::sync::Notify;

use super::{Collected, ObjectSource};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Provenance;
use crate::sync::address_space::vec_for;
use crate::sync::cancel::CancelFlag;

impl ObjectSource {
    /// Returns whether bytes may come from elsewhere than the origin.
    pub(crate) fn has_other_places(&self) -> bool {
        self.entry().is_some() || self.remote().mirrors().is_some()
    }

    /// Reads a range from the origin: neither from the cache nor from a mirror. Blocks, until
    /// `cancel` is set.
    ///
    /// # Errors
    ///
    /// Errors of the store, translated; [`ErrorKind::Cancelled`].
    pub(crate) fn read_origin(&self, range: Range<u64>, cancel: &CancelFlag) -> Result<Vec<u8>> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let stop = Arc::new(Notify::new());
        let stopper = Arc::clone(&stop);
        cancel.on_cancel(move || stopper.notify_one());
        let source = self.clone();
        self.remote().run(async move {
            let room = usize::try_from(range.end - range.start).unwrap_or(0);
            let mut collected = Collected {
                bytes: vec_for(room)?,
                retry_counter: source.remote().retry_counter().clone(),
            };
            let retries = source.retries().in_mid_load();
            tokio::select! {
                biased;
                () = stop.notified() => {
                    return Err(Error::new(ErrorKind::Cancelled, "the load was cancelled"));
                }
                read = source.read_remote(range, retries, None, &mut collected) => read?,
            }
            Ok(collected.bytes)
        })
    }

    /// Uses `places` no more for this object: this range of its bytes there is wrong. The cache
    /// may have it from a mirror, so it forgets the object in any case. Returns their names.
    pub(crate) fn distrust(&self, places: Provenance, range: &Range<u64>, error: &Error) -> String {
        let mut names = Vec::new();
        self.clear_cached();
        if places.meets(Provenance::CACHE) {
            self.entry().inspect(|entry| entry.count_damaged(range));
            names.push("the cache".to_owned());
        }
        if let Some(mirrors) = self.remote().mirrors() {
            names.extend(mirrors.distrust(places, error));
        }
        names.join(", ")
    }
}
