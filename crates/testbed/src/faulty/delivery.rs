//! Sends a response, with the fault of its rule.
//!
//! Owns the order of bytes, pauses and closings on one connection. Called by `listener` for each
//! request.

use std::io::{self, Write};
use std::net::TcpStream;
use std::ops::Range;

use super::reply::Piece;
use super::rule::Fault;
use super::state::{Job, Shared};
use super::wire;

/// Maximum length of one write, so that the count of bytes sent keeps up.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// Next step of the connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Another,
    Close,
}

pub(super) fn deliver(stream: &TcpStream, shared: &Shared, job: &Job) -> io::Result<Next> {
    let fault = job.fault.as_ref();
    // See `wire`: the unread byte turns the closing into a reset.
    if !matches!(fault, Some(Fault::ResetBeforeHeaders | Fault::ResetBody(_))) {
        wire::take_last_byte(stream)?;
        wire::skip_body(stream, &job.head)?;
    }
    if matches!(
        fault,
        Some(Fault::CutBeforeHeaders | Fault::ResetBeforeHeaders)
    ) {
        return Ok(Next::Close);
    }
    if let Some(Fault::Delay(time)) = fault {
        shared.hold(job, stream, Some(*time))?;
    }
    if matches!(fault, Some(Fault::StallHeaders)) {
        shared.hold(job, stream, None)?;
    }
    let mut out = stream;
    if let Some(Fault::Garbage(bytes)) = fault {
        out.write_all(bytes)?;
        return Ok(Next::Close);
    }
    shared.note_status(job);
    out.write_all(job.reply.head().as_bytes())?;

    let length = job.reply.body_len();
    let send = |span: Range<usize>| send(stream, shared, &job.reply.body, &span);
    if let Some(Fault::CutBody(count) | Fault::ResetBody(count)) = fault {
        send(0..length.min(*count))?;
        return Ok(Next::Close);
    }
    if let Some(Fault::StallBody(count)) = fault {
        let count = length.min(*count);
        send(0..count)?;
        shared.hold(job, stream, None)?;
        send(count..length)?;
    } else if let Some(Fault::Drip { bytes, pause }) = fault {
        let step = (*bytes).max(1);
        for begin in (0..length).step_by(step) {
            send(begin..length.min(begin + step))?;
            shared.hold(job, stream, Some(*pause))?;
        }
    } else {
        send(0..length)?;
    }
    let is_framed = !matches!(fault, Some(Fault::WrongLength(_)));
    Ok(if job.head.keep_alive && is_framed {
        Next::Another
    } else {
        Next::Close
    })
}

/// Sends these bytes of the body.
fn send(
    stream: &TcpStream,
    shared: &Shared,
    pieces: &[Piece],
    span: &Range<usize>,
) -> io::Result<()> {
    let mut piece_begin = 0;
    for piece in pieces {
        let bytes = piece.bytes();
        let piece_end = piece_begin + bytes.len();
        let (begin, end) = (span.start.max(piece_begin), span.end.min(piece_end));
        if begin < end {
            write(
                stream,
                shared,
                &bytes[begin - piece_begin..end - piece_begin],
            )?;
        }
        piece_begin = piece_end;
    }
    Ok(())
}

fn write(mut stream: &TcpStream, shared: &Shared, bytes: &[u8]) -> io::Result<()> {
    for run in bytes.chunks(WRITE_BYTES_MAX) {
        // Counted first: a client that has received them finds them counted.
        shared.count_body_bytes(run.len());
        stream.write_all(run)?;
    }
    Ok(())
}
