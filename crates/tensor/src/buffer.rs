//! Aligned, reference-counted bytes: all `unsafe` of the value layer. Memory is either our own
//! (64-byte aligned, or a `Vec` taken over without copying) or borrowed: from a network message, or from a process beside this one.
//! A scalar's few bytes lie beside their reference count: one allocation in place of two.
//! A buffer is immutable while shared; [`Buffer::make_mut`] is the only door to write.
#![allow(
    unsafe_code,
    reason = "owns raw memory so that tensors can be typed views without copies"
)]

use crate::Element;
use crate::account::{Account, pay_for};
use bytes::Bytes;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment of memory that we allocate ourselves: a cache line, and enough for AVX-512.
const ALIGN: usize = 64;

/// Most bytes that lie beside their reference count: as many as the other kinds of owner take there.
const INLINE: usize = 32;

/// A window on reference-counted bytes.
#[derive(Clone)]
pub struct Buffer {
    storage: Arc<Storage>,
    offset: usize,
    len: usize,
}

struct Storage {
    /// Where the bytes are, unless they lie here.
    ptr: NonNull<u8>,
    len: usize,
    owner: Owner,
    /// Who pays for it, if it is large.
    payer: Option<Arc<Account>>,
}

enum Owner {
    /// From the global allocator with this layout.
    Heap(Layout),
    /// Kept alive by the message it arrived in, or by the process that lends it; never written.
    Shared(#[expect(dead_code, reason = "held only so that the bytes stay alive")] Bytes),
    /// Here.
    Inline(UnsafeCell<Few>),
}

/// Room for a few bytes, aligned for elements of any type.
#[repr(align(8))]
struct Few(#[expect(dead_code, reason = "reached by its address")] [MaybeUninit<u8>; INLINE]);

const _: () = assert!(size_of::<Owner>() <= 40);

// SAFETY: the bytes are plain data; they are written only through `make_mut`, which needs the
// one and only reference, so sharing and sending follow the rules of `Arc<[u8]>`.
unsafe impl Send for Storage {}
// SAFETY: as above.
unsafe impl Sync for Storage {}

impl Drop for Storage {
    fn drop(&mut self) {
        if let Owner::Heap(layout) = self.owner
            && layout.size() != 0
        {
            // SAFETY: `ptr` came from the global allocator with exactly this layout, and this is
            // the last owner.
            unsafe { dealloc(self.ptr.as_ptr(), layout) }
            if let Some(payer) = &self.payer {
                payer.give(layout.size());
            }
        }
    }
}

impl Storage {
    /// The first byte. What lies inline moves with the storage.
    #[inline]
    fn start(&self) -> *mut u8 {
        match &self.owner {
            Owner::Inline(few) => few.get().cast(),
            Owner::Heap(_) | Owner::Shared(_) => self.ptr.as_ptr(),
        }
    }

    fn new(len: usize, zeroed: bool) -> Storage {
        if len > INLINE {
            return Storage::heap(len, zeroed);
        }
        let few = match zeroed {
            true => Few([MaybeUninit::new(0); INLINE]),
            false => Few([MaybeUninit::uninit(); INLINE]),
        };
        Storage {
            ptr: NonNull::dangling(),
            len,
            owner: Owner::Inline(UnsafeCell::new(few)),
            payer: None,
        }
    }

    fn heap(len: usize, zeroed: bool) -> Storage {
        // A length that no allocation can have fails the same way as exhausted memory; callers
        // with untrusted lengths check their budget first.
        let Ok(layout) = Layout::from_size_align(len, ALIGN) else {
            handle_alloc_error(Layout::new::<u8>())
        };
        let payer = pay_for(len);
        // SAFETY: the layout has a non-zero size: what is short lies inline.
        let ptr = unsafe {
            if zeroed {
                alloc_zeroed(layout)
            } else {
                alloc(layout)
            }
        };
        let Some(ptr) = NonNull::new(ptr) else {
            handle_alloc_error(layout)
        };
        Storage {
            ptr,
            len,
            owner: Owner::Heap(layout),
            payer,
        }
    }
}

fn dangling() -> NonNull<u8> {
    NonNull::without_provenance(std::num::NonZero::new(ALIGN).expect("ALIGN is not zero"))
}

impl Buffer {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Buffer {
        Buffer {
            storage: Arc::new(Storage::new(len, true)),
            offset: 0,
            len,
        }
    }

    /// `len` bytes that `fill` writes, never zeroed first.
    ///
    /// # Safety
    /// `fill` must write all `len` bytes from the pointer it gets, and none beyond them.
    pub unsafe fn build(len: usize, fill: impl FnOnce(*mut u8)) -> Buffer {
        let storage = Storage::new(len, false);
        fill(storage.start());
        Buffer {
            storage: Arc::new(storage),
            offset: 0,
            len,
        }
    }

    /// Copies bytes into aligned memory.
    pub fn copy_from(bytes: &[u8]) -> Buffer {
        let storage = Storage::new(bytes.len(), false);
        // SAFETY: the new storage has room for `bytes.len()` bytes and cannot overlap `bytes`.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), storage.start(), bytes.len());
        }
        Buffer {
            storage: Arc::new(storage),
            offset: 0,
            len: bytes.len(),
        }
    }

    /// The bytes of one element.
    #[inline]
    pub fn scalar<T: Element>(value: T) -> Buffer {
        let bytes = std::ptr::from_ref(&value).cast::<u8>();
        // SAFETY: the elements admitted by `Element` are plain data without padding, so all their bytes are initialised.
        Buffer::copy_from(unsafe { std::slice::from_raw_parts(bytes, size_of::<T>()) })
    }

    /// Takes over a vector's memory without copying, unless it is a few bytes.
    pub fn from_vec<T: Element>(values: Vec<T>) -> Buffer {
        if size_of_val(&*values) <= INLINE {
            // SAFETY: as in `scalar`.
            let bytes = unsafe {
                std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(&*values))
            };
            return Buffer::copy_from(bytes);
        }
        let layout = Layout::array::<T>(values.capacity()).expect("a live Vec has a valid layout");
        // While the vector can still be dropped.
        let payer = pay_for(layout.size());
        let mut values = std::mem::ManuallyDrop::new(values);
        let len = values.len() * size_of::<T>();
        let ptr =
            NonNull::new(values.as_mut_ptr().cast::<u8>()).expect("a Vec's pointer is never null");
        // The vector is not dropped (ManuallyDrop), its memory came from the global allocator
        // with `layout`, and `Element` has no destructor, so `Storage` may own and free it.
        let storage = Storage {
            ptr,
            len,
            owner: Owner::Heap(layout),
            payer,
        };
        Buffer {
            storage: Arc::new(storage),
            offset: 0,
            len,
        }
    }

    /// Wraps message bytes: without a copy if they are aligned for `align`, else with one.
    pub fn from_bytes(bytes: Bytes, align: usize) -> Buffer {
        if bytes.is_empty() || !(bytes.as_ptr() as usize).is_multiple_of(align) {
            return Buffer::copy_from(&bytes);
        }
        let len = bytes.len();
        let ptr = NonNull::new(bytes.as_ptr().cast_mut()).unwrap_or_else(dangling);
        let storage = Storage {
            ptr,
            len,
            owner: Owner::Shared(bytes),
            payer: None,
        };
        Buffer {
            storage: Arc::new(storage),
            offset: 0,
            len,
        }
    }

    /// Number of bytes in the window.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the window is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        debug_assert!(self.offset + self.len <= self.storage.len);
        // SAFETY: `offset + len <= storage.len` holds by construction (`slice` checks it), the
        // memory is initialised, and nobody writes while this shared borrow lives.
        unsafe { std::slice::from_raw_parts(self.storage.start().add(self.offset), self.len) }
    }

    /// A narrower window on the same memory, or `None` when it would not fit.
    pub fn slice(&self, offset: usize, len: usize) -> Option<Buffer> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        Some(Buffer {
            storage: self.storage.clone(),
            offset: self.offset + offset,
            len,
        })
    }

    /// Whether no other buffer shares the memory, so that writing needs no copy.
    #[inline]
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.storage) == 1 && !self.is_borrowed()
    }

    /// Whether the memory is somebody else's, lent to us: a message's, or another process'.
    #[inline]
    pub fn is_borrowed(&self) -> bool {
        matches!(self.storage.owner, Owner::Shared(_))
    }

    /// Whether somebody pays for the memory by itself: see [`crate::account`].
    pub fn is_counted(&self) -> bool {
        self.storage.payer.is_some()
    }

    /// Whether two buffers are windows on the same memory.
    pub fn shares_memory_with(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }

    /// The bytes for writing; copies first if the memory is shared.
    #[inline]
    pub fn make_mut(&mut self) -> &mut [u8] {
        if Arc::get_mut(&mut self.storage).is_none_or(|s| matches!(s.owner, Owner::Shared(_))) {
            *self = Buffer::copy_from(self.as_bytes());
        }
        // SAFETY: `self` now holds the only reference to heap memory of ours (checked or freshly
        // copied), and the window lies inside it.
        unsafe { std::slice::from_raw_parts_mut(self.storage.start().add(self.offset), self.len) }
    }

    /// The bytes as elements; `None` if length or alignment does not fit.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        let bytes = self.as_bytes();
        if bytes.is_empty() {
            return Some(&[]);
        }
        if !(bytes.as_ptr() as usize).is_multiple_of(align_of::<T>())
            || !bytes.len().is_multiple_of(size_of::<T>())
        {
            return None;
        }
        // SAFETY: aligned and a whole number of elements (checked); `Element` promises that the
        // admitted bytes are valid values.
        Some(unsafe {
            std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>())
        })
    }

    /// The bytes as elements for writing; copies first if the memory is shared.
    pub fn make_mut_slice<T: Element>(&mut self) -> Option<&mut [T]> {
        let bytes = self.make_mut();
        if bytes.is_empty() {
            return Some(&mut []);
        }
        if !(bytes.as_ptr() as usize).is_multiple_of(align_of::<T>())
            || !bytes.len().is_multiple_of(size_of::<T>())
        {
            return None;
        }
        // SAFETY: as in `as_slice`; exclusive because `make_mut` returned an exclusive borrow.
        Some(unsafe {
            std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>())
        })
    }

    /// This window as `Bytes`, sharing the memory: what goes on the wire is the tensor itself.
    pub fn to_bytes(&self) -> Bytes {
        if self.len == 0 {
            Bytes::new()
        } else {
            Bytes::from_owner(Window(self.clone()))
        }
    }
}

/// A buffer that is filled piece by piece, in order, and never zeroed first: for bytes that arrive
/// from a network.
pub struct BufferWriter {
    storage: Storage,
    /// Bytes from the start that have been written.
    written: usize,
}

impl BufferWriter {
    /// Room for exactly `len` bytes. Callers with untrusted lengths check their budget first.
    pub fn new(len: usize) -> BufferWriter {
        BufferWriter {
            storage: Storage::new(len, false),
            written: 0,
        }
    }

    /// Bytes that are still missing.
    pub fn missing(&self) -> usize {
        self.storage.len - self.written
    }

    /// Appends what fits and returns how much that was.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.missing());
        // SAFETY: `written + n <= storage.len`, the storage is ours alone, and `bytes` cannot
        // overlap memory that nobody else has seen.
        unsafe {
            let at = self.storage.start().add(self.written);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, n);
        }
        self.written += n;
        n
    }

    /// Lets `read` put bytes where the next ones belong, as far as there is room up to `limit`; it returns
    /// the part that it has written, which must be a front part of what it was given.
    pub fn fill<E>(
        &mut self,
        limit: usize,
        read: impl FnOnce(&mut [MaybeUninit<u8>]) -> Result<&mut [u8], E>,
    ) -> Result<usize, E> {
        let room = self.missing().min(limit);
        // SAFETY: `written + room <= storage.len`, and the storage is ours alone; the elements need not be
        // initialised.
        let free = unsafe {
            let at = self.storage.start().add(self.written);
            std::slice::from_raw_parts_mut(at.cast::<MaybeUninit<u8>>(), room)
        };
        let start = free.as_ptr().cast::<u8>();
        let wrote = read(free)?;
        assert!(
            wrote.is_empty() || std::ptr::eq(wrote.as_ptr(), start) && wrote.len() <= room,
            "what was written is not what there was room for"
        );
        let n = wrote.len();
        self.written += n;
        Ok(n)
    }

    /// The buffer, or `None` while bytes are missing: memory that nobody wrote is never shown.
    pub fn finish(self) -> Option<Buffer> {
        (self.missing() == 0).then(|| Buffer {
            len: self.storage.len,
            storage: Arc::new(self.storage),
            offset: 0,
        })
    }
}

struct Window(Buffer);

impl AsRef<[u8]> for Window {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_copies_only_what_is_shared() {
        let mut a = Buffer::from_vec(vec![1.0f32, 2.0]);
        let before = a.as_bytes().as_ptr();
        a.make_mut_slice::<f32>().unwrap()[0] = 5.0;
        assert_eq!(a.as_bytes().as_ptr(), before);
        let b = a.clone();
        a.make_mut_slice::<f32>().unwrap()[0] = 7.0;
        assert_ne!(a.as_bytes().as_ptr(), before);
        assert_eq!(b.as_slice::<f32>().unwrap(), [5.0, 2.0]);
        assert_eq!(a.as_slice::<f32>().unwrap(), [7.0, 2.0]);
    }

    #[test]
    fn aligned_message_bytes_are_not_copied_and_never_written() {
        let message = Bytes::from(vec![0u8; 64]);
        let at = message.as_ptr() as usize;
        let aligned = message.slice(at.wrapping_neg() % 8..);
        let mut b = Buffer::from_bytes(aligned.clone(), 8);
        assert_eq!(b.as_bytes().as_ptr(), aligned.as_ptr());
        assert!(b.is_borrowed() && !b.is_unique());
        b.make_mut()[0] = 9;
        assert!(!b.is_borrowed());
        assert_eq!(aligned[0], 0);
        let odd = message.slice(at.wrapping_neg() % 8 + 1..);
        assert_ne!(
            Buffer::from_bytes(odd.clone(), 8).as_bytes().as_ptr(),
            odd.as_ptr()
        );
    }

    #[test]
    fn built_buffers_hold_what_was_written() {
        // SAFETY: the closure writes all four bytes.
        let b = unsafe { Buffer::build(4, |p| p.cast::<[u8; 4]>().write([1, 2, 3, 4])) };
        assert_eq!(b.as_bytes(), [1, 2, 3, 4]);
        assert!(b.is_unique());
        // SAFETY: the closure writes all bytes.
        let b = unsafe { Buffer::build(INLINE + 1, |p| p.write_bytes(7, INLINE + 1)) };
        assert_eq!(b.as_bytes(), [7; INLINE + 1]);
        assert!((b.as_bytes().as_ptr() as usize).is_multiple_of(ALIGN));
        // SAFETY: there is nothing to write.
        assert!(unsafe { Buffer::build(0, |_| ()) }.is_empty());
    }

    #[test]
    fn short_buffers_behave_as_long_ones() {
        for len in [0, 1, INLINE - 1, INLINE, INLINE + 1] {
            let values: Vec<u8> = (0..len as u8).collect();
            let mut a = Buffer::from_vec(values.clone());
            let at = a.as_bytes().as_ptr();
            let moved = std::hint::black_box(vec![a.clone()]);
            let sent = a.to_bytes();
            assert_eq!((&sent[..], a.as_bytes()), (&values[..], &values[..]));
            assert_eq!(moved[0].as_bytes().as_ptr(), at, "{len}");
            assert!(at.addr().is_multiple_of(8) || len > INLINE);
            assert!(!a.is_unique());
            a.make_mut().fill(9);
            assert!(sent == values && a.as_bytes() == vec![9; len] && a.is_unique());
            let mut w = BufferWriter::new(len);
            w.write(&values);
            assert_eq!(w.finish().unwrap().as_bytes(), values);
            assert_eq!(Buffer::zeroed(len).as_bytes(), vec![0; len]);
        }
        assert_eq!(Buffer::scalar(2.5f64).as_slice::<f64>().unwrap(), [2.5]);
        assert_eq!(Buffer::scalar(true).as_bytes(), [1]);
    }

    #[test]
    fn a_writer_takes_what_fits_and_gives_only_whole_buffers() {
        let mut w = BufferWriter::new(5);
        assert_eq!(w.write(&[1, 2]), 2);
        assert_eq!(w.write(&[3, 4, 5, 6]), 3);
        assert_eq!((w.missing(), w.write(&[7])), (0, 0));
        let b = w.finish().unwrap();
        assert_eq!(b.as_bytes(), [1, 2, 3, 4, 5]);
        assert!(b.is_unique());
        assert!(BufferWriter::new(1).finish().is_none());
        assert!(BufferWriter::new(0).finish().unwrap().is_empty());
    }

    #[test]
    fn windows_are_checked() {
        let b = Buffer::copy_from(&[1, 2, 3, 4]);
        assert_eq!(b.slice(1, 2).unwrap().as_bytes(), [2, 3]);
        assert!(b.slice(3, 2).is_none());
        assert!(b.slice(usize::MAX, 2).is_none());
        assert!(b.slice(1, 3).unwrap().as_slice::<u16>().is_none());
        assert_eq!(
            b.slice(1, 2).unwrap().to_bytes(),
            Bytes::from_static(&[2, 3])
        );
    }

    #[test]
    fn empty_buffers_are_sound() {
        for mut b in [
            Buffer::zeroed(0),
            Buffer::from_vec::<f64>(vec![]),
            Buffer::copy_from(&[]),
        ] {
            assert!(b.is_empty() && b.to_bytes().is_empty());
            assert_eq!(b.as_slice::<f64>(), Some(&[] as &[f64]));
            assert!(b.make_mut().is_empty());
        }
    }
}
