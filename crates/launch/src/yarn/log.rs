//! What the ApplicationMaster prints, for launchers that follow it from outside: a file that grows, passed on as frames, and its end.

use crate::frames::{self, Frame, Word};
use crate::state::Exit;
use parking_lot::{Condvar, Mutex};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often the file is looked at.
const POLL: Duration = Duration::from_millis(50);
/// Most bytes of a piece.
const PIECE: u64 = 256 << 10;
/// A launcher that follows takes what there is by then.
const SILENT_FOR: Duration = Duration::from_secs(20);

/// The log, and who follows it.
pub(super) struct Log {
    path: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    end: Option<Exit>,
    followers: usize,
    /// How many have followed it to its end.
    served: usize,
}

impl Log {
    pub(super) fn new(path: PathBuf) -> Log {
        Log {
            path,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Nothing more will be printed. Waits until those who follow have it all: `patience` for the first to come.
    pub(super) fn end(&self, exit: Exit, patience: Duration) {
        let begin = Instant::now();
        let mut state = self.state.lock();
        state.end = Some(exit);
        while begin.elapsed() < patience && (state.followers > 0 || state.served == 0) {
            self.changed.wait_for(&mut state, POLL);
        }
    }

    /// Passes the log on to a launcher, from this byte on, and its signals to `signal`.
    pub(super) fn serve(
        &self,
        stream: TcpStream,
        from: u64,
        signal: impl Fn(i32) + Send + 'static,
    ) {
        self.state.lock().followers += 1;
        let done = self.pass(&stream, from, signal);
        let _ = stream.shutdown(Shutdown::Both);
        let mut state = self.state.lock();
        state.followers -= 1;
        state.served += usize::from(done.is_ok());
        self.changed.notify_all();
    }

    fn pass(
        &self,
        stream: &TcpStream,
        mut offset: u64,
        signal: impl Fn(i32) + Send + 'static,
    ) -> io::Result<()> {
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(Some(SILENT_FOR))?;
        let words = stream.try_clone()?;
        std::thread::spawn(move || hear(words, signal));
        let mut to = stream;
        let mut asked = Instant::now();
        loop {
            // Looked at first: what was printed before the end is read after it.
            let end = self.state.lock().end;
            loop {
                let mut file = File::open(&self.path)?;
                file.seek(SeekFrom::Start(offset))?;
                let mut bytes = Vec::new();
                file.take(PIECE).read_to_end(&mut bytes)?;
                if bytes.is_empty() {
                    break;
                }
                offset += bytes.len() as u64;
                frames::write(&mut to, &Frame::Out(bytes))?;
            }
            if let Some(exit) = end {
                return frames::write(&mut to, &Frame::Exit(exit));
            }
            if asked.elapsed() > SILENT_FOR / 4 {
                // Whether there is still somebody.
                asked = Instant::now();
                frames::write(&mut to, &Frame::Lease(0))?;
            }
            std::thread::sleep(POLL);
        }
    }
}

fn hear(stream: TcpStream, signal: impl Fn(i32)) {
    let mut from = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        match (&mut from).take(frames::MAX_LINE).read_line(&mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if let Ok(Word::Signal(number)) = serde_json::from_str(&line) {
            signal(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::sync::{Arc, mpsc};

    #[test]
    fn who_follows_has_all_of_it_and_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("job.log");
        std::fs::write(&path, "one\ntwo\n").unwrap();
        let log = Arc::new(Log::new(path.clone()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut us = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        let (tell, told) = mpsc::channel();
        let serving = log.clone();
        let server = std::thread::spawn(move || {
            serving.serve(theirs, 4, move |n| tell.send(n).unwrap());
        });
        frames::say(&mut us, &Word::Signal(15)).unwrap();
        assert_eq!(told.recv().unwrap(), 15);
        let mut file = crate::dir::append(&path).unwrap();
        file.write_all(b"three\n").unwrap();
        log.end(Exit::Code(7), Duration::ZERO);
        let mut from = BufReader::new(us);
        let mut heard = Vec::new();
        let exit = loop {
            match frames::read(&mut from).unwrap().unwrap() {
                Frame::Out(bytes) => heard.extend(bytes),
                Frame::Exit(exit) => break exit,
                _ => {}
            }
        };
        server.join().unwrap();
        assert_eq!(
            (heard.as_slice(), exit),
            (b"two\nthree\n".as_slice(), Exit::Code(7))
        );
    }
}
