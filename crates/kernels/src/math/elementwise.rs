//! The inner loops of elementwise ops. A [`Unary`], [`Convert`] or [`Binary`] kernel knows one
//! element type and one function and runs over one contiguous block; shapes, broadcasting,
//! threads and memory are the business of `drive`, which sees only bytes and is therefore
//! compiled once and not once per op and type.
#![allow(unsafe_code, reason = "blocks arrive as bytes and are typed here")]

use super::isa::{Isa, Loop, Plain, dispatch};
use downpour_tensor::DType;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Elements below which a cheap loop is not worth splitting over threads.
pub(crate) const GRAIN: usize = 32 << 10;
/// The same for loops that call functions.
pub(crate) const COSTLY_GRAIN: usize = 4 << 10;
/// Changes a block of elements in place.
pub(crate) trait Unary: Send + Sync {
    /// Bytes of an element.
    fn size(&self) -> usize;
    /// Elements worth a thread of their own.
    fn grain(&self) -> usize {
        GRAIN
    }
    /// Runs over `n` elements.
    ///
    /// # Safety
    /// `block` must point to `n` aligned elements of the kernel's type that nobody else uses.
    unsafe fn run(&self, block: *mut u8, n: usize);
}

/// Reads a block of elements and writes as many of another type.
pub(crate) trait Convert: Send + Sync {
    /// Bytes of an element read.
    fn size_in(&self) -> usize;
    /// Type written.
    fn output(&self) -> DType;
    /// Runs over `n` elements.
    ///
    /// # Safety
    /// `from` must point to `n` aligned elements of the type read, `to` to room for `n` of the
    /// type written that nobody else uses.
    unsafe fn run(&self, to: *mut u8, from: *const u8, n: usize);
}

/// How the operands of a block move.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Steps {
    /// Both by one.
    Both,
    /// The left one stays.
    Right,
    /// The right one stays.
    Left,
}

/// Combines two blocks of elements into a third.
pub(crate) trait Binary: Send + Sync {
    /// Bytes of an operand's element.
    fn size_in(&self) -> usize;
    /// Type written; `None` when it is that of the operands.
    fn output(&self) -> Option<DType>;
    /// Elements worth a thread of their own.
    fn grain(&self) -> usize {
        GRAIN
    }
    /// Runs over `n` elements; `false` when an element was refused.
    ///
    /// # Safety
    /// `a` and `b` must point to aligned elements of the operands' type, `n` of them where they
    /// move and one where they stay; `out` to room for `n` of the type written, which neither
    /// overlaps them nor is used by anybody else.
    unsafe fn run(&self, out: *mut u8, a: *const u8, b: *const u8, n: usize, steps: Steps) -> bool;
}

/// A function of one element, of any type.
///
/// `WIDE`: compiled for several instruction sets.
pub(crate) struct Map<T, F, const WIDE: bool> {
    f: F,
    grain: usize,
    element: PhantomData<fn(T) -> T>,
}

/// A cheap function of floats, compiled for several instruction sets.
pub(crate) fn vector(f: impl Fn(f32) -> f32 + Copy + Send + Sync + 'static) -> Box<dyn Unary> {
    Box::new(Map::<f32, _, true> {
        f,
        grain: GRAIN,
        element: PhantomData,
    })
}

/// A cheap function of doubles, compiled for several instruction sets.
pub(crate) fn vector64(f: impl Fn(f64) -> f64 + Copy + Send + Sync + 'static) -> Box<dyn Unary> {
    Box::new(Map::<f64, _, true> {
        f,
        grain: GRAIN / 2,
        element: PhantomData,
    })
}

/// A cheap function.
pub(crate) fn plain<T, F>(f: F) -> Box<dyn Unary>
where
    T: Copy + 'static,
    F: Fn(T) -> T + Copy + Send + Sync + 'static,
{
    Box::new(Map::<T, F, false> {
        f,
        grain: GRAIN,
        element: PhantomData,
    })
}

/// A function that calls others, or a rare one.
pub(crate) fn scalar<T, F>(f: F) -> Box<dyn Unary>
where
    T: Copy + 'static,
    F: Fn(T) -> T + Copy + Send + Sync + 'static,
{
    Box::new(Map::<T, F, false> {
        f,
        grain: COSTLY_GRAIN,
        element: PhantomData,
    })
}

struct MapLoop<'a, T, F>(&'a mut [T], F);

impl<T: Copy, F: Fn(T) -> T> Loop for MapLoop<'_, T, F> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        for x in self.0 {
            *x = (self.1)(*x);
        }
    }
}

impl<T: Copy, F: Fn(T) -> T + Copy + Send + Sync, const WIDE: bool> Unary for Map<T, F, WIDE> {
    fn size(&self) -> usize {
        size_of::<T>()
    }
    fn grain(&self) -> usize {
        self.grain
    }
    unsafe fn run(&self, block: *mut u8, n: usize) {
        // SAFETY: the trait's contract.
        let block = unsafe { std::slice::from_raw_parts_mut(block.cast::<T>(), n) };
        let l = MapLoop(block, self.f);
        if WIDE {
            dispatch(l);
        } else {
            l.run::<Plain>();
        }
    }
}

/// A function of one float that wants to know the instruction set.
pub(crate) trait Function: Copy + Send + Sync + 'static {
    /// The value at `x`; must be `#[inline(always)]`.
    fn at<I: Isa>(self, x: f32) -> f32;
}

/// A [`Function`] as a kernel.
pub(crate) struct Floats<F>(pub(crate) F);

struct FloatsLoop<'a, F>(&'a mut [f32], F);

impl<F: Function> Loop for FloatsLoop<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        for x in self.0 {
            *x = self.1.at::<I>(*x);
        }
    }
}

impl<F: Function> Unary for Floats<F> {
    fn size(&self) -> usize {
        size_of::<f32>()
    }
    fn grain(&self) -> usize {
        GRAIN / 2
    }
    unsafe fn run(&self, block: *mut u8, n: usize) {
        // SAFETY: the trait's contract.
        let block = unsafe { std::slice::from_raw_parts_mut(block.cast::<f32>(), n) };
        dispatch(FloatsLoop(block, self.0));
    }
}

/// A function from one type to another.
pub(crate) struct MapTo<T, O, F> {
    f: F,
    output: DType,
    elements: PhantomData<fn(T) -> O>,
}

/// A function from one type to another; `O` must be the Rust type of `output`.
pub(crate) fn convert<T, O, F>(output: DType, f: F) -> Box<dyn Convert>
where
    T: Copy + 'static,
    O: 'static,
    F: Fn(T) -> O + Send + Sync + 'static,
{
    assert_eq!(
        output.size(),
        Some(size_of::<O>()),
        "the types differ in size"
    );
    Box::new(MapTo {
        f,
        output,
        elements: PhantomData,
    })
}

impl<T: Copy, O, F: Fn(T) -> O + Send + Sync> Convert for MapTo<T, O, F> {
    fn size_in(&self) -> usize {
        size_of::<T>()
    }
    fn output(&self) -> DType {
        self.output
    }
    unsafe fn run(&self, to: *mut u8, from: *const u8, n: usize) {
        // SAFETY: the trait's contract.
        let (from, to) = unsafe {
            (
                std::slice::from_raw_parts(from.cast::<T>(), n),
                std::slice::from_raw_parts_mut(to.cast::<MaybeUninit<O>>(), n),
            )
        };
        for (to, from) in to.iter_mut().zip(from) {
            to.write((self.f)(*from));
        }
    }
}

/// A function of two elements, with a loop for each way the operands move.
///
/// `WIDE`: compiled for several instruction sets.
struct Zip<T, O, F, const WIDE: bool> {
    f: F,
    output: Option<DType>,
    elements: PhantomData<fn(T) -> O>,
}

/// A cheap function of floats, compiled for several instruction sets.
pub(crate) fn vector2(
    f: impl Fn(f32, f32) -> f32 + Copy + Send + Sync + 'static,
) -> Box<dyn Binary> {
    Box::new(Zip::<f32, f32, _, true> {
        f,
        output: None,
        elements: PhantomData,
    })
}

/// The same of doubles.
pub(crate) fn vector2_64(
    f: impl Fn(f64, f64) -> f64 + Copy + Send + Sync + 'static,
) -> Box<dyn Binary> {
    Box::new(Zip::<f64, f64, _, true> {
        f,
        output: None,
        elements: PhantomData,
    })
}

/// A cheap function of a common type.
pub(crate) fn plain2<T, F>(f: F) -> Box<dyn Binary>
where
    T: Copy + 'static,
    F: Fn(T, T) -> T + Copy + Send + Sync + 'static,
{
    Box::new(Zip::<T, T, F, false> {
        f,
        output: None,
        elements: PhantomData,
    })
}

/// A comparison of floats, compiled for several instruction sets.
pub(crate) fn vector_test(
    f: impl Fn(f32, f32) -> bool + Copy + Send + Sync + 'static,
) -> Box<dyn Binary> {
    Box::new(Zip::<f32, bool, _, true> {
        f,
        output: Some(DType::Bool),
        elements: PhantomData,
    })
}

/// A comparison of a common type.
pub(crate) fn plain_test<T, F>(f: F) -> Box<dyn Binary>
where
    T: Copy + 'static,
    F: Fn(T, T) -> bool + Copy + Send + Sync + 'static,
{
    Box::new(Zip::<T, bool, F, false> {
        f,
        output: Some(DType::Bool),
        elements: PhantomData,
    })
}

/// A function of two elements, with one loop: for rare types and costly functions.
struct Each<T, O, F> {
    f: F,
    output: Option<DType>,
    elements: PhantomData<fn(T) -> O>,
}

/// A function that calls others, or of a rare type.
pub(crate) fn scalar2<T, F>(f: F) -> Box<dyn Binary>
where
    T: Copy + 'static,
    F: Fn(T, T) -> T + Send + Sync + 'static,
{
    Box::new(Each {
        f,
        output: None,
        elements: PhantomData,
    })
}

/// A comparison of a rare type.
pub(crate) fn scalar_test<T, F>(f: F) -> Box<dyn Binary>
where
    T: Copy + 'static,
    F: Fn(T, T) -> bool + Send + Sync + 'static,
{
    convert2(DType::Bool, f)
}

/// A function of two elements of one type with a result of another; `O` must be the Rust type of
/// `output`.
pub(crate) fn convert2<T, O, F>(output: DType, f: F) -> Box<dyn Binary>
where
    T: Copy + 'static,
    O: 'static,
    F: Fn(T, T) -> O + Send + Sync + 'static,
{
    assert_eq!(
        output.size(),
        Some(size_of::<O>()),
        "the types differ in size"
    );
    Box::new(Each {
        f,
        output: Some(output),
        elements: PhantomData,
    })
}

impl<T: Copy, O, F: Fn(T, T) -> O + Send + Sync> Binary for Each<T, O, F> {
    fn size_in(&self) -> usize {
        size_of::<T>()
    }
    fn output(&self) -> Option<DType> {
        self.output
    }
    fn grain(&self) -> usize {
        COSTLY_GRAIN
    }
    unsafe fn run(&self, out: *mut u8, a: *const u8, b: *const u8, n: usize, steps: Steps) -> bool {
        // SAFETY: the trait's contract.
        let (out, a, b) = unsafe { slices::<T, O>(out, a, b, n, steps) };
        let (sa, sb) = strides(steps);
        for (i, o) in out.iter_mut().enumerate() {
            o.write((self.f)(a[i * sa], b[i * sb]));
        }
        true
    }
}

struct ZipLoop<'a, T, O, F> {
    out: &'a mut [MaybeUninit<O>],
    a: &'a [T],
    b: &'a [T],
    steps: Steps,
    f: F,
}

impl<T: Copy, O, F: Fn(T, T) -> O> Loop for ZipLoop<'_, T, O, F> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let ZipLoop {
            out,
            a,
            b,
            steps,
            f,
        } = self;
        match (steps, a, b) {
            (Steps::Both, a, b) => {
                for ((o, a), b) in out.iter_mut().zip(a).zip(b) {
                    o.write(f(*a, *b));
                }
            }
            (Steps::Right, &[a, ..], b) => {
                for (o, b) in out.iter_mut().zip(b) {
                    o.write(f(a, *b));
                }
            }
            (Steps::Left, a, &[b, ..]) => {
                for (o, a) in out.iter_mut().zip(a) {
                    o.write(f(*a, b));
                }
            }
            _ => {}
        }
    }
}

/// The slices of a block as the contract of [`Binary::run`] describes them.
///
/// # Safety
/// That contract, for a lifetime the caller chooses.
unsafe fn slices<'a, T, O>(
    out: *mut u8,
    a: *const u8,
    b: *const u8,
    n: usize,
    steps: Steps,
) -> (&'a mut [MaybeUninit<O>], &'a [T], &'a [T]) {
    let left = if steps == Steps::Right { 1 } else { n };
    let right = if steps == Steps::Left { 1 } else { n };
    // SAFETY: the caller's promise.
    unsafe {
        (
            std::slice::from_raw_parts_mut(out.cast(), n),
            std::slice::from_raw_parts(a.cast(), left),
            std::slice::from_raw_parts(b.cast(), right),
        )
    }
}

impl<T: Copy, O, F: Fn(T, T) -> O + Copy + Send + Sync, const WIDE: bool> Binary
    for Zip<T, O, F, WIDE>
{
    fn size_in(&self) -> usize {
        size_of::<T>()
    }
    fn output(&self) -> Option<DType> {
        self.output
    }
    unsafe fn run(&self, out: *mut u8, a: *const u8, b: *const u8, n: usize, steps: Steps) -> bool {
        // SAFETY: the trait's contract.
        let (out, a, b) = unsafe { slices(out, a, b, n, steps) };
        let f = self.f;
        let l = ZipLoop {
            out,
            a,
            b,
            steps,
            f,
        };
        if WIDE {
            dispatch(l);
        } else {
            l.run::<Plain>();
        }
        true
    }
}

pub(crate) fn strides(steps: Steps) -> (usize, usize) {
    match steps {
        Steps::Both => (1, 1),
        Steps::Right => (0, 1),
        Steps::Left => (1, 0),
    }
}

/// A function of two elements that may refuse them.
pub(crate) struct Checked<T, F>(F, PhantomData<fn(T)>);

/// A function that gives `None` for operands it refuses.
pub(crate) fn checked2<T, F>(f: F) -> Box<dyn Binary>
where
    T: Copy + Default + 'static,
    F: Fn(T, T) -> Option<T> + Send + Sync + 'static,
{
    Box::new(Checked(f, PhantomData))
}

impl<T: Copy + Default, F: Fn(T, T) -> Option<T> + Send + Sync> Binary for Checked<T, F> {
    fn size_in(&self) -> usize {
        size_of::<T>()
    }
    fn output(&self) -> Option<DType> {
        None
    }
    fn grain(&self) -> usize {
        COSTLY_GRAIN
    }
    unsafe fn run(&self, out: *mut u8, a: *const u8, b: *const u8, n: usize, steps: Steps) -> bool {
        // SAFETY: the trait's contract.
        let (out, a, b) = unsafe { slices::<T, T>(out, a, b, n, steps) };
        let (sa, sb) = strides(steps);
        let mut good = true;
        for (i, o) in out.iter_mut().enumerate() {
            let value = (self.0)(a[i * sa], b[i * sb]);
            good &= value.is_some();
            o.write(value.unwrap_or_default());
        }
        good
    }
}
