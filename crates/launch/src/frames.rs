//! What the launcher and its half on another host say to each other over the standard streams of ssh or srun: lines of
//! JSON there, frames with a length back. Secrets pass here and never on a command line.

use crate::state::Exit;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, BufRead, Read as _, Write};
use std::path::PathBuf;

/// Begins the frames: what a login script prints before it is not read.
const GREETING: &str = "downpour-frames 1";
/// Most bytes before the greeting.
const MAX_NOISE: u64 = 64 << 10;
/// Most bytes of a frame.
const MAX_FRAME: usize = 1 << 20;
/// Most bytes of a line to the other host.
pub(crate) const MAX_LINE: u64 = 8 << 20;

/// What is asked of a host, first.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Which version is there.
    Check,
    /// So many free ports.
    Ports(u32),
    /// Which run the tasks of this job belong to, if there are any.
    Find(String),
    /// End what runs of this job and this run, and forget it.
    Clean { job: String, run: String },
    /// Start a task, or find it, and tell of it to its end.
    Task(Box<Order>),
}

/// A task to start.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) job: String,
    /// Names the run of the job.
    pub(crate) run: String,
    /// As in `worker-0`.
    pub(crate) task: String,
    /// Whether one of the same run that is there, or has ended unseen, is taken for it.
    pub(crate) adopts: bool,
    /// Whether contact was lost: this start, and no other, is told of from these places of its output on.
    pub(crate) again: Option<Again>,
    /// Whether the task ends with this connection.
    pub(crate) holds: bool,
    pub(crate) command: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    /// Where it is started, if that exists.
    pub(crate) cwd: PathBuf,
    pub(crate) lease_ms: u64,
    pub(crate) drain_ms: u64,
}

/// Where to go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Again {
    pub(crate) start: u64,
    pub(crate) out: u64,
    pub(crate) err: u64,
}

/// What is said later on.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Word {
    /// The launcher is there: the lease that was asked for with this number is granted.
    Lease(u64),
    /// For the task.
    Signal(i32),
}

/// What is told.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Frame {
    /// The version that is there.
    Version(String),
    /// Free ports.
    Ports(Vec<u16>),
    /// The run of a job's tasks.
    Found(Option<String>),
    /// Done as was asked.
    Done,
    /// The task runs: which start of it, and its process.
    Started { start: u64, pid: u32 },
    /// A lease is asked for.
    Lease(u64),
    /// The task's end.
    Exit(Exit),
    /// It cannot be done.
    Refused(String),
    /// Output of the task; bytes follow the line.
    #[serde(skip)]
    Out(Vec<u8>),
    /// Its errors.
    #[serde(skip)]
    Err(Vec<u8>),
}

/// Writes the greeting.
pub(crate) fn greet(to: &mut impl Write) -> io::Result<()> {
    writeln!(to, "{GREETING}")?;
    to.flush()
}

/// Reads up to the greeting.
pub(crate) fn await_greeting(from: &mut impl BufRead) -> io::Result<()> {
    let mut noise = from.take(MAX_NOISE);
    let mut line = Vec::new();
    loop {
        line.clear();
        if noise.read_until(b'\n', &mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if line.trim_ascii() == GREETING.as_bytes() {
            return Ok(());
        }
    }
}

/// Writes a frame.
pub(crate) fn write(to: &mut impl Write, frame: &Frame) -> io::Result<()> {
    match frame {
        Frame::Out(bytes) | Frame::Err(bytes) => {
            let kind = if matches!(frame, Frame::Out(_)) {
                'o'
            } else {
                'e'
            };
            for part in bytes.chunks(MAX_FRAME) {
                writeln!(to, "{kind}{}", part.len())?;
                to.write_all(part)?;
            }
        }
        other => {
            let text = serde_json::to_string(other).map_err(io::Error::other)?;
            writeln!(to, "j{}", text.len())?;
            to.write_all(text.as_bytes())?;
        }
    }
    to.flush()
}

/// Reads a frame; none at the end of the stream between two.
pub(crate) fn read(from: &mut impl BufRead) -> io::Result<Option<Frame>> {
    let mut head = Vec::new();
    if from.take(16).read_until(b'\n', &mut head)? == 0 {
        return Ok(None);
    }
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "this is no frame of downpour");
    let text = std::str::from_utf8(&head).map_err(|_| malformed())?;
    let (kind, length) = text.split_at_checked(1).ok_or_else(malformed)?;
    let length = length.strip_suffix('\n').ok_or_else(malformed)?;
    let length: usize = length.parse().map_err(|_| malformed())?;
    if length > MAX_FRAME {
        return Err(malformed());
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    match kind {
        "o" => Ok(Some(Frame::Out(bytes))),
        "e" => Ok(Some(Frame::Err(bytes))),
        "j" => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|_| malformed()),
        _ => Err(malformed()),
    }
}

/// Writes a line to the other host.
pub(crate) fn say(to: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_string(what).map_err(io::Error::other)?;
    text.push('\n');
    to.write_all(text.as_bytes())?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_read_as_they_were_written() {
        let frames = [
            Frame::Version("1".to_owned()),
            Frame::Ports(vec![1, 2]),
            Frame::Started { start: 3, pid: 4 },
            Frame::Out(b"a\nb".to_vec()),
            Frame::Err(Vec::from([0, 255])),
            Frame::Lease(9),
            Frame::Exit(Exit::Signal(9)),
            Frame::Refused("no".to_owned()),
        ];
        let mut bytes = b"Welcome!\nj5\n".to_vec();
        greet(&mut bytes).unwrap();
        for frame in &frames {
            write(&mut bytes, frame).unwrap();
        }
        let mut from = bytes.as_slice();
        await_greeting(&mut from).unwrap();
        for frame in frames {
            assert_eq!(read(&mut from).unwrap(), Some(frame));
        }
        assert_eq!(read(&mut from).unwrap(), None);
    }

    #[test]
    fn what_is_no_frame_is_an_error_and_costs_no_memory() {
        for text in [
            "x1\na",
            "o\n",
            "o99999999999\n",
            "o5\nab",
            "j2\n{}",
            "o-1\n",
            "0",
        ] {
            assert!(read(&mut text.as_bytes()).is_err(), "{text}");
        }
        assert!(await_greeting(&mut "no\n".as_bytes()).is_err());
        assert!(await_greeting(&mut io::BufReader::new(io::repeat(b'x'))).is_err());
    }
}
