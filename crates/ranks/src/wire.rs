//! Messages between the leader of a node and the ranks that follow it: records of 24 bytes. Pure.

/// Length of a record, bytes.
pub(crate) const RECORD_BYTES: usize = 24;

/// Most records of one packet.
pub(crate) const RECORDS_MAX: usize = 256;

/// Most descriptors of one packet: the kernel allows 253 (`SCM_MAX_FD`).
pub(crate) const DESCRIPTORS_MAX: usize = 64;

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(loom, expect(missing_docs, reason = "the variants are described"))]
pub enum Record {
    /// From a rank: it joins; its request follows in the descriptor.
    Join { rank: u32 },
    /// From the leader: the rank has joined its node.
    Joined,
    /// From the leader: the rank's part of the plan is in the descriptor.
    Plan,
    /// From a rank: it wants the region.
    Ask { region: u32 },
    /// From the leader: the memory of the region is the descriptor.
    Here { region: u32 },
    /// From the leader: these bytes of the region are filled.
    Filled { region: u32, from: u64, to: u64 },
    /// From the leader: the region is no longer kept for the rank.
    Gone { region: u32 },
    /// From a rank: it no longer needs the region to be kept.
    Release { region: u32 },
    /// From a rank: it has unmapped the memory of the region, whose bytes may be replaced.
    Unmapped { region: u32 },
    /// From the leader: the load has failed; the error is in the descriptor.
    Failed,
    /// From a rank: it has finished; its statistics follow in the descriptor.
    Done,
    /// From the leader: everything has been read, and verified where that was requested.
    Whole,
    /// The sender's process runs.
    Alive,
}

impl Record {
    /// Returns whether a descriptor comes with it.
    pub fn has_descriptor(self) -> bool {
        matches!(
            self,
            Self::Join { .. } | Self::Plan | Self::Here { .. } | Self::Failed | Self::Done
        )
    }

    /// Returns the record as bytes.
    pub fn encode(self) -> [u8; RECORD_BYTES] {
        let (kind, number, from, to) = match self {
            Self::Join { rank } => (1_u32, rank, 0, 0),
            Self::Joined => (2, 0, 0, 0),
            Self::Plan => (3, 0, 0, 0),
            Self::Ask { region } => (4, region, 0, 0),
            Self::Here { region } => (5, region, 0, 0),
            Self::Filled { region, from, to } => (6, region, from, to),
            Self::Gone { region } => (7, region, 0, 0),
            Self::Release { region } => (8, region, 0, 0),
            Self::Failed => (9, 0, 0, 0),
            Self::Done => (10, 0, 0, 0),
            Self::Whole => (11, 0, 0, 0),
            Self::Alive => (12, 0, 0, 0),
            Self::Unmapped { region } => (13, region, 0, 0),
        };
        let mut bytes = [0; RECORD_BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..16].copy_from_slice(&from.to_le_bytes());
        bytes[16..].copy_from_slice(&to.to_le_bytes());
        bytes
    }

    /// Decodes a record; `None` if `bytes` are not a valid one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; RECORD_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        let region = word(4);
        Some(match word(0) {
            1 => Self::Join { rank: region },
            2 => Self::Joined,
            3 => Self::Plan,
            4 => Self::Ask { region },
            5 => Self::Here { region },
            6 => Self::Filled {
                region,
                from: long(8),
                to: long(16),
            },
            7 => Self::Gone { region },
            8 => Self::Release { region },
            9 => Self::Failed,
            10 => Self::Done,
            11 => Self::Whole,
            12 => Self::Alive,
            13 => Self::Unmapped { region },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip() {
        let all = [
            Record::Join { rank: 7 },
            Record::Joined,
            Record::Plan,
            Record::Ask { region: 1 },
            Record::Here { region: u32::MAX },
            Record::Filled {
                region: 2,
                from: 3,
                to: u64::MAX,
            },
            Record::Gone { region: 4 },
            Record::Release { region: 5 },
            Record::Failed,
            Record::Done,
            Record::Whole,
            Record::Alive,
            Record::Unmapped { region: 6 },
        ];
        for record in all {
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
    }

    #[test]
    fn other_bytes_are_no_record() {
        assert_eq!(Record::decode(&[0; RECORD_BYTES]), None);
        assert_eq!(Record::decode(&[14; RECORD_BYTES]), None);
        assert_eq!(Record::decode(&[1; RECORD_BYTES - 1]), None);
    }
}
