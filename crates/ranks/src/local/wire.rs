//! Messages between rank 0 and the other ranks of a local group, as bytes. Pure.
//!
//! A frame is the length of its body (four bytes, little endian), a tag, and the body. A rank sends
//! [`Frame::Hello`] once, then one [`Frame::Message`] for each exchange, and gets one
//! [`Frame::All`] or [`Frame::Failed`] for each. The hello is JSON, so that any two versions can
//! tell each other their version.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::verdict::Verdict;
use crate::MESSAGE_BYTES_MAX;

/// Version of the protocol. Raise it with any change of frames behind the hello.
pub(super) const VERSION: u32 = 1;

const HEADER: usize = 5;
/// Bytes of a message before the caller's own: the time that is left, in microseconds.
const REMAINING: usize = 8;
/// Bytes for the length of one message in [`Frame::All`].
const LENGTH: usize = 4;

const HELLO: u8 = 1;
const MESSAGE: u8 = 2;
const ALL: u8 = 3;
const FAILED: u8 = 4;

/// Introduction of a process to rank 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    #[serde(rename = "tload_group")]
    pub(super) version: u32,
    pub(super) rank: usize,
    pub(super) size: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Hello(Hello),
    /// Message of one rank for the next exchange.
    Message {
        /// Time until the deadline of the rank, when it was sent.
        remaining: Duration,
        bytes: Vec<u8>,
    },
    /// Messages of all ranks, by rank: the end of an exchange.
    All(Vec<Vec<u8>>),
    /// Failure of the group.
    Failed(Verdict),
}

impl Frame {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut frame = vec![0; HEADER];
        frame[HEADER - 1] = match self {
            Self::Hello(hello) => {
                frame.extend(json(hello));
                HELLO
            }
            Self::Message { remaining, bytes } => {
                let micros = u64::try_from(remaining.as_micros()).unwrap_or(u64::MAX);
                frame.extend(micros.to_le_bytes());
                frame.extend(bytes);
                MESSAGE
            }
            Self::All(messages) => {
                for message in messages {
                    frame.extend(length(message.len()));
                    frame.extend(message);
                }
                ALL
            }
            Self::Failed(verdict) => {
                frame.extend(json(verdict));
                FAILED
            }
        };
        let body = length(frame.len() - HEADER);
        frame[..LENGTH].copy_from_slice(&body);
        frame
    }

    fn decode(tag: u8, body: &[u8]) -> Result<Self, Malformed> {
        match tag {
            HELLO => serde_json::from_slice(body)
                .map(Self::Hello)
                .map_err(|_| Malformed),
            MESSAGE => {
                let (remaining, bytes) = body.split_first_chunk::<REMAINING>().ok_or(Malformed)?;
                Ok(Self::Message {
                    remaining: Duration::from_micros(u64::from_le_bytes(*remaining)),
                    bytes: bytes.to_vec(),
                })
            }
            ALL => {
                let mut messages = Vec::new();
                let mut rest = body;
                while !rest.is_empty() {
                    let (length, behind) = rest.split_first_chunk::<LENGTH>().ok_or(Malformed)?;
                    let length =
                        usize::try_from(u32::from_le_bytes(*length)).map_err(|_| Malformed)?;
                    let (message, behind) = behind.split_at_checked(length).ok_or(Malformed)?;
                    messages.push(message.to_vec());
                    rest = behind;
                }
                Ok(Self::All(messages))
            }
            FAILED => serde_json::from_slice(body)
                .map(Self::Failed)
                .map_err(|_| Malformed),
            _ => Err(Malformed),
        }
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("numbers and texts")
}

fn length(bytes: usize) -> [u8; LENGTH] {
    u32::try_from(bytes)
        .expect("sizes of groups and messages are limited")
        .to_le_bytes()
}

/// Error for bytes that no version of tload sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Bytes received from one process, until they make whole frames.
#[derive(Debug)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    body_max: usize,
}

impl Frames {
    /// Accepts the frames of a rank.
    pub(super) fn of_rank() -> Self {
        Self::new(REMAINING + MESSAGE_BYTES_MAX)
    }

    /// Accepts the answers of rank 0 in a group of `size` ranks.
    pub(super) fn of_answers(size: usize) -> Self {
        Self::new((LENGTH + MESSAGE_BYTES_MAX) * size)
    }

    fn new(body_max: usize) -> Self {
        let bytes = Vec::new();
        Self { bytes, body_max }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the first whole frame.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        let Some((header, behind)) = self.bytes.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let [l0, l1, l2, l3, tag] = *header;
        let length =
            usize::try_from(u32::from_le_bytes([l0, l1, l2, l3])).map_err(|_| Malformed)?;
        if length > self.body_max {
            return Err(Malformed);
        }
        let Some(body) = behind.get(..length) else {
            return Ok(None);
        };
        let frame = Frame::decode(tag, body)?;
        self.bytes.drain(..HEADER + length);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples() -> Vec<Frame> {
        vec![
            Frame::Hello(Hello {
                version: VERSION,
                rank: 3,
                size: 8,
            }),
            Frame::Message {
                remaining: Duration::from_micros(17),
                bytes: b"abc".to_vec(),
            },
            Frame::Message {
                remaining: Duration::ZERO,
                bytes: vec![7; MESSAGE_BYTES_MAX],
            },
            Frame::All(vec![vec![], vec![1; MESSAGE_BYTES_MAX], vec![2]]),
            Frame::All(vec![vec![]; 3]),
            Frame::Failed(Verdict::Duplicate { rank: 2 }),
        ]
    }

    #[test]
    fn frames_round_trip_however_they_are_cut() {
        for step in [1, 3, 1000, usize::MAX] {
            let mut frames = Frames::of_answers(3);
            let mut found = Vec::new();
            let sent: Vec<_> = examples().iter().flat_map(Frame::encode).collect();
            for bytes in sent.chunks(step) {
                frames.push(bytes);
                while let Some(frame) = frames.next().expect("well-formed") {
                    found.push(frame);
                }
            }
            assert_eq!(found, examples(), "{step} bytes at once");
        }
    }

    #[test]
    fn malformed_frames_are_refused_before_they_are_whole() {
        let next = |bytes: &[u8]| {
            let mut frames = Frames::of_rank();
            frames.push(bytes);
            frames.next()
        };
        assert_eq!(next(&[]), Ok(None));
        assert_eq!(next(&[0, 0, 0]), Ok(None));
        assert_eq!(next(b"GET / HTTP/1.1"), Err(Malformed), "too long");
        assert_eq!(next(&[0, 0, 0, 0, 99]), Err(Malformed), "unknown tag");
        assert_eq!(
            next(&[2, 0, 0, 0, MESSAGE, 1, 1]),
            Err(Malformed),
            "no time"
        );
        assert_eq!(next(&[2, 0, 0, 0, HELLO, b'{', b'}']), Err(Malformed));
        let all = [5, 0, 0, 0, ALL, 9, 0, 0, 0, 1];
        assert_eq!(
            next(&all),
            Err(Malformed),
            "a message longer than its frame"
        );
    }

    /// The version can be read from a hello of any version.
    #[test]
    fn hello_tolerates_fields_of_later_versions() {
        let body = br#"{"tload_group":9,"rank":1,"size":2,"later":[1]}"#;
        let mut frames = Frames::of_rank();
        frames.push(&length(body.len()));
        frames.push(&[HELLO]);
        frames.push(body);
        let hello = Hello {
            version: 9,
            rank: 1,
            size: 2,
        };
        assert_eq!(frames.next(), Ok(Some(Frame::Hello(hello))));
    }
}
