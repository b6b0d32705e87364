//! Memory pools: the bytes that they reserve and use. `memory.rs` manages addresses.

use crate::driver::Driver;
use crate::status::{INVALID_VALUE, OUT_OF_MEMORY, Outcome};

const RELEASE_THRESHOLD: u32 = 4;
const RESERVED_CURRENT: u32 = 5;
const RESERVED_HIGH: u32 = 6;
const USED_CURRENT: u32 = 7;
const USED_HIGH: u32 = 8;

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) ordinal: i32,
    pub(crate) is_default: bool,
    /// The caller has destroyed the pool; it lives on while memory of it does.
    closing: bool,
    /// Maximum size; 0 is without limit.
    max: usize,
    /// Bytes that stay reserved when the host waits for a stream, an event or a context.
    threshold: u64,
    reserved: usize,
    reserved_high: usize,
    used: usize,
    used_high: usize,
    /// Attributes `REUSE_…`, which change nothing here.
    reuse: [i32; 3],
}

impl Driver {
    pub(crate) fn new_pool(&mut self, ordinal: i32, max: usize, is_default: bool) -> u64 {
        let id = self.fresh();
        let pool = Pool {
            ordinal,
            is_default,
            closing: false,
            max,
            threshold: 0,
            reserved: 0,
            reserved_high: 0,
            used: 0,
            used_high: 0,
            reuse: [1; 3],
        };
        self.pools.insert(id, pool);
        id
    }

    pub(crate) fn pool(&mut self, id: u64) -> Outcome<&mut Pool> {
        self.pools
            .get_mut(&id)
            .filter(|pool| !pool.closing)
            .ok_or(INVALID_VALUE)
    }

    /// Bytes reserved by a device's pools.
    pub(crate) fn reserved(&self, ordinal: i32) -> usize {
        let own = self.pools.values().filter(|pool| pool.ordinal == ordinal);
        own.map(|pool| pool.reserved).sum()
    }

    /// Takes bytes from a pool, which grows if necessary, and returns its device.
    pub(crate) fn reserve(&mut self, id: u64, len: usize) -> Outcome<i32> {
        let pool = self.pool(id)?;
        let ordinal = pool.ordinal;
        let used = pool.used.checked_add(len).ok_or(OUT_OF_MEMORY)?;
        if pool.max > 0 && used > pool.max {
            return Err(OUT_OF_MEMORY);
        }
        let growth = used.saturating_sub(pool.reserved);
        self.afford(ordinal, growth)?;
        let pool = self.pool(id)?;
        pool.used = used;
        pool.used_high = pool.used_high.max(used);
        pool.reserved += growth;
        pool.reserved_high = pool.reserved_high.max(pool.reserved);
        Ok(ordinal)
    }

    /// Returns bytes to a pool, which keeps them for now.
    pub(crate) fn unreserve(&mut self, id: u64, len: usize) {
        let pool = self.pools.get_mut(&id).expect("a pool outlives its memory");
        pool.used -= len;
        if pool.closing && pool.used == 0 {
            self.pools.remove(&id);
        }
    }

    /// Frees what a device's pools hold beyond their threshold, as every synchronisation with it
    /// does.
    pub(crate) fn trim_pools(&mut self, ordinal: i32) {
        let own = self.pools.values_mut();
        for pool in own.filter(|pool| pool.ordinal == ordinal) {
            pool.trim(usize::try_from(pool.threshold).unwrap_or(usize::MAX));
        }
    }

    /// Frees what a device's pools held, after its context is gone.
    pub(crate) fn empty_pools(&mut self, ordinal: i32) {
        for pool in self.pools.values_mut() {
            if pool.ordinal == ordinal {
                pool.trim(0);
            }
        }
    }

    /// Sets the pool of a device that `cuMemAllocAsync` uses.
    pub(crate) fn set_pool(&mut self, ordinal: i32, id: u64) -> Outcome {
        self.device(ordinal)?;
        if self.pool(id)?.ordinal != ordinal {
            return Err(INVALID_VALUE);
        }
        self.known(ordinal).pool = id;
        Ok(())
    }

    /// Destroys a pool. A device whose current pool it was uses its default pool again.
    pub(crate) fn destroy_pool(&mut self, id: u64) -> Outcome {
        let pool = self.pool(id)?;
        if pool.is_default {
            return Err(INVALID_VALUE);
        }
        pool.closing = true;
        pool.trim(0);
        let (ordinal, is_empty) = (pool.ordinal, pool.used == 0);
        let device = self.known(ordinal);
        if device.pool == id {
            device.pool = device.default_pool;
        }
        if is_empty {
            self.pools.remove(&id);
        }
        Ok(())
    }
}

/// Value of an attribute, in the driver's type for it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    Int(i32),
    Long(u64),
}

impl Pool {
    /// Frees reserved bytes down to `keep`.
    pub(crate) fn trim(&mut self, keep: usize) {
        self.reserved = self.reserved.min(keep).max(self.used);
    }

    pub(crate) fn get(&self, attribute: u32) -> Outcome<Value> {
        let long = |bytes: usize| Value::Long(u64::try_from(bytes).unwrap_or(u64::MAX));
        Ok(match attribute {
            1..=3 => Value::Int(self.reuse[index(attribute)]),
            RELEASE_THRESHOLD => Value::Long(self.threshold),
            RESERVED_CURRENT => long(self.reserved),
            RESERVED_HIGH => long(self.reserved_high),
            USED_CURRENT => long(self.used),
            USED_HIGH => long(self.used_high),
            _ => return Err(INVALID_VALUE),
        })
    }

    /// Returns whether an attribute is an `int`; the others are 64 bits wide.
    pub(crate) fn is_int(attribute: u32) -> bool {
        (1..=3).contains(&attribute)
    }

    /// Sets an attribute. High-water marks can only be set to 0, which sets them to the present
    /// value.
    pub(crate) fn set(&mut self, attribute: u32, value: Value) -> Outcome {
        match (attribute, value) {
            (1..=3, Value::Int(value)) => self.reuse[index(attribute)] = value,
            (RELEASE_THRESHOLD, Value::Long(value)) => self.threshold = value,
            (RESERVED_HIGH, Value::Long(0)) => self.reserved_high = self.reserved,
            (USED_HIGH, Value::Long(0)) => self.used_high = self.used,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }
}

fn index(attribute: u32) -> usize {
    usize::try_from(attribute - 1).expect("1 to 3")
}
