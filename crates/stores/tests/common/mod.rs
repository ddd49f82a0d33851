//! What tests on real services share: a checkpoint that is saved as training saves it, and proxies that lose a chosen
//! request.
#![allow(dead_code)]

use downpour_formats::Storage;
use downpour_formats::bundle::{BundleReader, SaveTensor, merge_v2, restore_v2, save_v2};
use downpour_formats::checkpoint_state::{CheckpointState, latest_complete};
use downpour_formats::storage::join;
use downpour_graph::Result;
use downpour_stores::Patience;
use downpour_tensor::{DType, Tensor};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// For a client that is to give up soon, on a machine however busy.
pub(crate) const SHORT: Patience = Patience { tries: 2, ..LONG };

/// For runs in which every request is answered in the end.
pub(crate) const LONG: Patience = Patience {
    first: Duration::from_secs(60),
    steady: Duration::from_secs(60),
    attempt: Duration::from_secs(20),
    tries: u32::MAX,
};

fn tensors(step: i64, large: usize) -> [(&'static str, Tensor); 2] {
    [
        ("large", Tensor::vector(vec![step as f32; large])),
        ("small", Tensor::vector(vec![step as f32 + 0.5; 100])),
    ]
}

/// Saves as `Saver` does: a part for each of two tasks, joined, listed; then the one before is deleted.
pub(crate) fn save(storage: &dyn Storage, dir: &str, step: i64, large: usize) -> Result<()> {
    let prefix = join(dir, &format!("model.ckpt-{step}"));
    let mut parts = Vec::new();
    for (i, (name, tensor)) in tensors(step, large).into_iter().enumerate() {
        let part = format!("{prefix}_temp/part-{i:05}-of-00002");
        let tensor = SaveTensor {
            name,
            shape_and_slice: "",
            tensor,
        };
        save_v2(storage, &part, &[tensor])?;
        parts.push(part);
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    merge_v2(storage, &parts, &prefix, true, false)?;
    let name = format!("model.ckpt-{step}");
    let state = CheckpointState {
        model_checkpoint_path: name.clone(),
        all_model_checkpoint_paths: vec![name],
        ..CheckpointState::default()
    };
    state.write(storage, dir, "checkpoint")?;
    for old in storage.glob(&join(dir, &format!("model.ckpt-{}.*", step - 1)))? {
        storage.delete(&old)?;
    }
    Ok(())
}

/// The step of the checkpoint that training would go on from, all of whose values were read and are right.
pub(crate) fn latest(storage: &dyn Storage, dir: &str, large: usize) -> i64 {
    let found = latest_complete(storage, dir, "checkpoint").unwrap();
    let prefix = found
        .prefix
        .unwrap_or_else(|| panic!("no checkpoint in {dir}"));
    let step: i64 = prefix.rsplit_once('-').unwrap().1.parse().unwrap();
    BundleReader::open(storage, &prefix)
        .unwrap()
        .verify()
        .unwrap();
    for (name, expected) in tensors(step, large) {
        let read = restore_v2(storage, &prefix, &[name], &[""], &[DType::Float]).unwrap();
        let (read, expected) = (read[0].as_slice::<f32>(), expected.as_slice::<f32>());
        assert!(read.unwrap() == expected.unwrap(), "{name} of step {step}");
    }
    step
}

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It does not arrive.
    Lost,
    /// It arrives, its answer does not.
    Unanswered,
    /// The service answers that it cannot now (HTTP only).
    Refused,
}

/// How requests are told apart in a stream of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    /// Hadoop's: a greeting of seven bytes, then frames with their length in front.
    Hadoop,
}

/// Stands between a client and a service.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    service: String,
    protocol: Protocol,
    count: AtomicUsize,
    /// The request with this number, and all after it if the client is to seem dead.
    fault: Mutex<Option<(usize, Fault)>>,
    is_fatal: AtomicBool,
    /// Whether the service refuses everything.
    is_out: AtomicBool,
    happened: AtomicBool,
}

impl Proxy {
    pub(crate) fn to(service: &str, protocol: Protocol) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy {
            address: listener.local_addr().unwrap(),
            shared: Arc::new(Shared {
                service: service.to_owned(),
                protocol,
                count: AtomicUsize::new(0),
                fault: Mutex::default(),
                is_fatal: AtomicBool::new(false),
                is_out: AtomicBool::new(false),
                happened: AtomicBool::new(false),
            }),
        };
        let shared = proxy.shared.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let shared = shared.clone();
                std::thread::spawn(move || {
                    // A connection that breaks is what this is for.
                    let _ = shared.serve(near);
                });
            }
        });
        proxy
    }

    /// Lets a fault happen to the request with this number, counted from now; `is_fatal` ones go on for ever.
    pub(crate) fn plan(&self, number: usize, fault: Fault, is_fatal: bool) {
        *self.shared.fault.lock().unwrap() = Some((number, fault));
        self.shared.is_fatal.store(is_fatal, Ordering::SeqCst);
        self.shared.happened.store(false, Ordering::SeqCst);
        self.shared.count.store(0, Ordering::SeqCst);
    }

    pub(crate) fn out(&self, is_out: bool) {
        self.shared.is_out.store(is_out, Ordering::SeqCst);
    }

    /// Requests since the last plan.
    pub(crate) fn count(&self) -> usize {
        self.shared.count.load(Ordering::SeqCst)
    }

    /// Whether the planned fault has happened.
    pub(crate) fn happened(&self) -> bool {
        self.shared.happened.load(Ordering::SeqCst)
    }
}

impl Shared {
    /// What happens to the next request.
    fn next(&self) -> Option<Fault> {
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        if self.is_out.load(Ordering::SeqCst) {
            return Some(Fault::Refused);
        }
        let (at, fault) = (*self.fault.lock().unwrap())?;
        let is_fatal = self.is_fatal.load(Ordering::SeqCst);
        if number == at {
            self.happened.store(true, Ordering::SeqCst);
            return Some(fault);
        }
        (is_fatal && number > at).then_some(Fault::Lost)
    }

    fn serve(&self, near: TcpStream) -> std::io::Result<()> {
        near.set_nodelay(true)?;
        match self.protocol {
            Protocol::Http => self.serve_http(near),
            Protocol::Hadoop => self.serve_hadoop(near),
        }
    }

    fn serve_http(&self, mut near: TcpStream) -> std::io::Result<()> {
        loop {
            let Some(request) = read_message(&mut near)? else {
                return Ok(());
            };
            let fault = self.next();
            match fault {
                Some(Fault::Lost) => return near.shutdown(Shutdown::Both),
                Some(Fault::Refused) => {
                    let answer = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
                    near.write_all(answer)?;
                    continue;
                }
                _ => {}
            }
            let mut far = TcpStream::connect(&self.service)?;
            let end = request.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
            // The whole answer is what comes before the service closes.
            far.write_all(&request[..end])?;
            far.write_all(b"\r\nConnection: close")?;
            far.write_all(&request[end..])?;
            let mut answer = Vec::new();
            far.read_to_end(&mut answer)?;
            if fault == Some(Fault::Unanswered) {
                return near.shutdown(Shutdown::Both);
            }
            near.write_all(&answer)?;
            return near.shutdown(Shutdown::Both);
        }
    }

    fn serve_hadoop(&self, mut near: TcpStream) -> std::io::Result<()> {
        let mut far = TcpStream::connect(&self.service)?;
        far.set_nodelay(true)?;
        let mut greeting = [0; 7];
        near.read_exact(&mut greeting)?;
        far.write_all(&greeting)?;
        let muted = Arc::new(AtomicBool::new(false));
        let (mut from, mut to, quiet) = (far.try_clone()?, near.try_clone()?, muted.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 1 << 14];
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                if quiet.load(Ordering::SeqCst) || to.write_all(&buffer[..n]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        });
        loop {
            let mut length = [0; 4];
            near.read_exact(&mut length)?;
            let mut frame = vec![0; u32::from_be_bytes(length) as usize];
            near.read_exact(&mut frame)?;
            let fault = self.next();
            match fault {
                Some(Fault::Lost | Fault::Refused) => {
                    near.shutdown(Shutdown::Both)?;
                    return far.shutdown(Shutdown::Both);
                }
                // The other thread ends both when the answer comes.
                Some(Fault::Unanswered) => muted.store(true, Ordering::SeqCst),
                None => {}
            }
            far.write_all(&length)?;
            far.write_all(&frame)?;
        }
    }
}

/// Reads one HTTP message with its body; nothing at the end of the stream.
fn read_message(stream: &mut TcpStream) -> std::io::Result<Option<Vec<u8>>> {
    let mut data = Vec::new();
    let mut buffer = [0; 1 << 16];
    let end = loop {
        if let Some(end) = data.windows(4).position(|w| w == b"\r\n\r\n") {
            break end + 4;
        }
        match stream.read(&mut buffer)? {
            0 => return Ok(None),
            n => data.extend_from_slice(&buffer[..n]),
        }
    };
    let head = String::from_utf8_lossy(&data[..end]).to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length.map_or(0, |n| n.trim().parse().unwrap());
    while data.len() < end + length {
        match stream.read(&mut buffer)? {
            0 => return Ok(None),
            n => data.extend_from_slice(&buffer[..n]),
        }
    }
    Ok(Some(data))
}

/// A service behind proxies, and how to reach it.
pub(crate) struct Subject<'a> {
    pub(crate) proxy: &'a (dyn Fn() -> Proxy + Sync),
    /// What happens to one request, and whether to all after it too.
    pub(crate) ways: &'a [(Fault, bool)],
    pub(crate) direct: &'a (dyn Storage + Sync),
    pub(crate) through: &'a (dyn Fn(&Proxy, Patience) -> Box<dyn Storage> + Sync),
    pub(crate) dir: &'a str,
    /// Elements of the larger tensor.
    pub(crate) large: usize,
}

/// Saves at once, most of which wait for their patience to end.
const AT_ONCE: usize = 6;

impl Subject<'_> {
    /// Breaks a save off at each of its requests, in each way: what is then found is the checkpoint before or the new
    /// one, whole. Then lets each request fail once: the save succeeds nevertheless. How many requests a save makes.
    pub(crate) fn survive_every_request(&self) -> usize {
        let counted = (self.proxy)();
        counted.plan(usize::MAX, Fault::Lost, false);
        let storage = (self.through)(&counted, LONG);
        let dir = join(self.dir, "counted");
        storage.create_dir(&dir).unwrap();
        for step in 1..=2 {
            counted.plan(usize::MAX, Fault::Lost, false);
            save(&*storage, &dir, step, self.large).unwrap();
        }
        let requests = counted.count();
        // A client that begins anew makes a few requests more.
        let cases = (0..requests + 8).flat_map(|n| self.ways.iter().map(move |way| (n, *way)));
        let cases: Vec<(usize, (Fault, bool))> = cases.collect();
        let next = AtomicUsize::new(0);
        let happened = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for worker in 0..AT_ONCE {
                let (next, happened, cases) = (&next, &happened, &cases);
                scope.spawn(move || {
                    let dir = join(self.dir, &format!("w{worker}"));
                    let _ = self.direct.create_dir(&dir);
                    save(self.direct, &dir, 1, self.large).unwrap();
                    let mut step = 1;
                    while let Some((number, way)) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                        let (found, has) = self.survive(&dir, step, *number, *way);
                        step = found;
                        happened.fetch_add(usize::from(has), Ordering::SeqCst);
                    }
                });
            }
        });
        let happened = happened.load(Ordering::SeqCst);
        assert!(
            happened >= requests * self.ways.len(),
            "{happened} faults in {requests} requests"
        );
        requests
    }

    /// One save with one fault; the step that is found, and whether the fault happened.
    fn survive(&self, dir: &str, step: i64, number: usize, way: (Fault, bool)) -> (i64, bool) {
        let (fault, is_fatal) = way;
        let proxy = (self.proxy)();
        let storage = (self.through)(&proxy, if is_fatal { SHORT } else { LONG });
        proxy.plan(number, fault, is_fatal);
        let saved = save(&*storage, dir, step + 1, self.large);
        let found = latest(self.direct, dir, self.large);
        let happened = proxy.happened();
        if is_fatal && happened {
            assert!(
                found == step || found == step + 1,
                "{fault:?} at {number}: {found}"
            );
        } else {
            saved.unwrap_or_else(|e| panic!("{fault:?} once at {number}: {e}"));
            assert_eq!(found, step + 1, "{fault:?} once at {number}");
        }
        // The litter of a save that was broken off does not stand in the way of the next.
        (found, happened)
    }
}
