//! Writes a model to an object store, as programs save theirs: all or nothing.

use std::collections::BTreeMap;

use tload::copy::SmallObject;
use tload::write::{TensorSpec, WriteOptions, Writer};
use tload::{Location, Result, StoreOptions};

use crate::host::Host;
use crate::random::Numbers;
use crate::writer::{BUFFER_BYTES, CONFIG_NAME, Synth, pretty};
use crate::{Entry, total};

impl Synth<'_> {
    /// Writes the model below a prefix. The tensors are those of a directory, in files of at most
    /// the length of the longest there. Returns the number of files.
    ///
    /// Refuses a prefix with a checkpoint, unless `force` is set: then it is replaced.
    pub fn write_to(
        &self,
        location: &Location,
        store: &StoreOptions,
        force: bool,
        host: &dyn Host,
    ) -> Result<u64> {
        let spec = |entry: &Entry| TensorSpec::new(&*entry.name, entry.dtype, &*entry.shape);
        let specs: Result<Vec<_>> = self.model.entries.iter().map(spec).collect();
        let longest = self.shards.iter().map(|shard| total(shard)).max();
        let options = WriteOptions::new()
            .store(store.clone())
            .replace(force)
            .max_shard_bytes(longest.unwrap_or(0));
        let mut writer = Writer::planned(location, specs?, options)?;
        let config = SmallObject::open(&location.join(CONFIG_NAME), store, force)?;
        let entries = self.model.entries.iter();
        let entries: BTreeMap<_, _> = entries.map(|entry| (entry.name.as_str(), entry)).collect();
        let order: Vec<String> = writer.order().map(str::to_owned).collect();
        let mut buffer = vec![0; BUFFER_BYTES];
        for name in order {
            let entry = entries[name.as_str()];
            writer.begin(spec(entry)?)?;
            let mut numbers = Numbers::new(self.seed, &entry.name, entry.dtype);
            let mut left = entry.byte_len();
            while left > 0 {
                host.check()?;
                let len = usize::try_from(left).map_or(BUFFER_BYTES, |left| left.min(BUFFER_BYTES));
                numbers.fill(&mut buffer[..len]);
                writer.write(&buffer[..len])?;
                left -= len as u64;
                host.advance(len as u64);
            }
        }
        config.put(pretty(&self.model.config).as_bytes())?;
        Ok(writer.finish()?.files.len() as u64)
    }
}
