//! The inner loop of every product here: a few rows of the left operand, read wherever they lie,
//! against a panel of the right operand, sums held in registers.
//!
//! A row of the left operand is an offset; its elements are `segments` runs of `len` elements,
//! `step` apart. That one form covers plain matrices (one run), transposed ones (`step` = row
//! length) and convolutions (one run per filter row), so none of them is copied into a matrix
//! first. A sum is always taken in the order of the reduction by one chain of additions, so a
//! result does not depend on how the work was cut.
#![allow(
    unsafe_code,
    reason = "vector instructions, and reads through checked offsets"
)]

use std::mem::MaybeUninit;

/// One product: `rows.len()` rows of the left operand times all panels of the right one.
pub(crate) struct Sweep<'a, T> {
    /// The left operand.
    pub(crate) a: &'a [T],
    /// Where in `a` each row begins.
    pub(crate) rows: &'a [usize],
    /// Where, from a row's beginning, each run of the reduction begins, and which row of the
    /// right operand it begins with.
    pub(crate) segments: &'a [(usize, usize)],
    /// Elements of a run.
    pub(crate) len: usize,
    /// Distance between neighbours in a run.
    pub(crate) step: usize,
    /// The right operand: panels of `width` columns (the last of at least `cols % width`),
    /// each row-major with `stride` between its rows, `panel` elements from one to the next.
    pub(crate) b: &'a [T],
    /// Distance between rows of a panel.
    pub(crate) stride: usize,
    /// Distance between panels.
    pub(crate) panel: usize,
    /// Columns of the result.
    pub(crate) cols: usize,
    /// Where in the result each row begins.
    pub(crate) out_rows: &'a [usize],
}

/// Runs of `len` elements that meet the rows of the right operand one after the other.
pub(crate) fn in_turn(starts: impl IntoIterator<Item = usize>, len: usize) -> Vec<(usize, usize)> {
    let runs = starts.into_iter().enumerate();
    runs.map(|(i, start)| (start, i * len)).collect()
}

/// Vector types and tile sizes differ between processors: the one to use here.
pub(crate) struct Kernel<T> {
    /// Columns of a panel.
    pub(crate) width: usize,
    /// Elements of a vector: the last panel is that wide if it needs no more.
    pub(crate) lanes: usize,
    /// Rows that are computed together.
    pub(crate) rows: usize,
    run: unsafe fn(&Sweep<'_, T>, *mut T, bool),
    /// Turns around a block of [`TURN`] by [`TURN`] elements: from, its stride, to, its stride.
    turn: unsafe fn(*const T, usize, *mut T, usize),
}

/// Rows and columns of the block that [`Kernel::transpose`] moves at once.
pub(crate) const TURN: usize = 16;

impl<T: Copy> Kernel<T> {
    /// Writes `rows` by `cols` elements of `from`, whose rows are `stride` apart, transposed to
    /// `to`, whose rows are `to_stride` apart.
    pub(crate) fn transpose(
        &self,
        (from, stride): (&[T], usize),
        (to, to_stride): (&mut [T], usize),
        rows: usize,
        cols: usize,
    ) {
        if rows == 0 || cols == 0 {
            return;
        }
        assert!(
            (rows - 1) * stride + cols <= from.len() && (cols - 1) * to_stride + rows <= to.len(),
            "a block ends past its matrix"
        );
        let (whole_rows, whole_cols) = (rows / TURN * TURN, cols / TURN * TURN);
        for i in (0..whole_rows).step_by(TURN) {
            for j in (0..whole_cols).step_by(TURN) {
                // SAFETY: the block is within both matrices, as asserted.
                unsafe {
                    let from = from.as_ptr().add(i * stride + j);
                    (self.turn)(
                        from,
                        stride,
                        to.as_mut_ptr().add(j * to_stride + i),
                        to_stride,
                    );
                }
            }
        }
        for i in 0..rows {
            let done = if i < whole_rows { whole_cols } else { 0 };
            for j in done..cols {
                to[j * to_stride + i] = from[i * stride + j];
            }
        }
    }

    /// Elements that `cols` columns of `depth` rows take as panels.
    pub(crate) fn packed_len(&self, depth: usize, cols: usize) -> usize {
        cols.div_ceil(self.width) * self.width * depth
    }

    /// Writes the product over `out`; every element of every row is set.
    pub(crate) fn write(&self, sweep: &Sweep<'_, T>, out: &mut [MaybeUninit<T>]) {
        self.check(sweep, out.len());
        // SAFETY: `check` made sure that all reads and writes are within the slices; with `false`
        // the result is only written.
        unsafe { (self.run)(sweep, out.as_mut_ptr().cast(), false) }
    }

    /// Adds the product to `out`.
    pub(crate) fn add(&self, sweep: &Sweep<'_, T>, out: &mut [T]) {
        self.check(sweep, out.len());
        // SAFETY: as in `write`; all of `out` holds values.
        unsafe { (self.run)(sweep, out.as_mut_ptr(), true) }
    }

    /// Writes or adds the product at `out`, `len` elements, of which other threads may write
    /// other parts.
    ///
    /// # Safety
    /// The places `out_rows` names, each of `cols` elements, must be valid for writing and not
    /// used by anyone else meanwhile; with `add` they must hold values.
    pub(crate) unsafe fn run_at(&self, sweep: &Sweep<'_, T>, out: *mut T, len: usize, add: bool) {
        self.check(sweep, len);
        // SAFETY: reads are checked, writes are the caller's promise.
        unsafe { (self.run)(sweep, out, add) }
    }

    /// Panics unless every access is within bounds: offsets are computed by us from checked
    /// shapes, so anything else is a bug that must not become a wild read.
    fn check(&self, s: &Sweep<'_, T>, out_len: usize) {
        assert_eq!(s.rows.len(), s.out_rows.len(), "rows in and out differ");
        let max = |v: &[usize]| v.iter().copied().max().unwrap_or(0);
        if s.rows.is_empty() || s.cols == 0 {
            return;
        }
        assert!(
            max(s.out_rows) + s.cols <= out_len,
            "a row ends past the result"
        );
        if s.segments.is_empty() || s.len == 0 {
            return;
        }
        let reach = |part: fn(&(usize, usize)) -> usize| s.segments.iter().map(part).max();
        let (start, row) = (reach(|s| s.0).unwrap_or(0), reach(|s| s.1).unwrap_or(0));
        let reach = max(s.rows) + start + (s.len - 1) * s.step;
        assert!(reach < s.a.len(), "a row ends past the left operand");
        let panels = s.cols.div_ceil(self.width);
        let last = s.cols - (panels - 1) * self.width;
        let last = if last <= self.lanes {
            self.lanes
        } else {
            self.width
        };
        let depth = row + s.len;
        let wide = if panels > 1 { self.width } else { last };
        assert!(
            (panels - 1) * s.panel + (depth - 1) * s.stride + last <= s.b.len()
                && panels.saturating_sub(2) * s.panel + (depth - 1) * s.stride + wide <= s.b.len(),
            "a panel ends past the right operand"
        );
    }
}

/// # Safety
/// Both blocks must be valid.
unsafe fn turn_plain<T: Copy>(from: *const T, stride: usize, to: *mut T, to_stride: usize) {
    for j in 0..TURN {
        for i in 0..TURN {
            // SAFETY: the caller's promise.
            unsafe { *to.add(j * to_stride + i) = *from.add(i * stride + j) };
        }
    }
}

/// Types that have a kernel.
pub(crate) trait Tiled: Copy + Default + Send + Sync + 'static {
    /// The kernel for this processor.
    fn kernel() -> &'static Kernel<Self>;
}

/// A vector of elements.
///
/// # Safety of the methods
/// The processor must have the instructions, and pointers must be valid for the elements named.
trait Vector: Copy {
    type Elem: Copy;
    const LANES: usize;
    unsafe fn zero() -> Self;
    unsafe fn splat(p: *const Self::Elem) -> Self;
    unsafe fn load(p: *const Self::Elem) -> Self;
    unsafe fn store(self, p: *mut Self::Elem);
    unsafe fn mul_add(self, x: Self, y: Self) -> Self;
    unsafe fn add(self, x: Self) -> Self;
}

/// Largest `LANES * NV`, for the buffer of a partial store.
const MAX_WIDTH: usize = 32;

#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "loops of constant length over registers read best with indices"
)]
unsafe fn tile<V: Vector, const MR: usize, const NV: usize>(
    s: &Sweep<'_, V::Elem>,
    row: usize,
    count: usize,
    b: *const V::Elem,
    out: *mut V::Elem,
    cols: usize,
    add: bool,
) {
    // SAFETY: the caller checked that rows `row..row + count` and the panel at `b` are in bounds;
    // rows beyond `count` repeat the last one and are not stored.
    unsafe {
        let at: [usize; MR] = std::array::from_fn(|m| row + m.min(count - 1));
        let mut acc = [[V::zero(); NV]; MR];
        for &(segment, first) in s.segments {
            let mut b = b.add(first * s.stride);
            let a: [*const V::Elem; MR] =
                std::array::from_fn(|m| s.a.as_ptr().add(*s.rows.get_unchecked(at[m]) + segment));
            let mut i = 0;
            for _ in 0..s.len {
                let y: [V; NV] = std::array::from_fn(|j| V::load(b.add(j * V::LANES)));
                for m in 0..MR {
                    let x = V::splat(a[m].add(i));
                    for j in 0..NV {
                        acc[m][j] = acc[m][j].mul_add(x, y[j]);
                    }
                }
                i += s.step;
                b = b.add(s.stride);
            }
        }
        // Only loops of constant length may touch `acc`: an index known at run time would make the
        // compiler keep it in memory all along.
        if count == MR && cols == NV * V::LANES {
            for m in 0..MR {
                let to = out.add(*s.out_rows.get_unchecked(row + m));
                for j in 0..NV {
                    let p = to.add(j * V::LANES);
                    let v = if add {
                        V::load(p).add(acc[m][j])
                    } else {
                        acc[m][j]
                    };
                    v.store(p);
                }
            }
            return;
        }
        let mut sums = [[MaybeUninit::<V::Elem>::uninit(); MAX_WIDTH]; MR];
        for m in 0..MR {
            for j in 0..NV {
                acc[m][j].store(sums[m].as_mut_ptr().add(j * V::LANES).cast());
            }
        }
        for (m, sum) in sums.iter_mut().enumerate().take(count) {
            let to = out.add(*s.out_rows.get_unchecked(row + m));
            let sum = sum.as_mut_ptr().cast::<V::Elem>();
            if add {
                // Lanes past `cols` are computed on zeros and then dropped.
                let mut old = [MaybeUninit::<V::Elem>::zeroed(); MAX_WIDTH];
                let old = old.as_mut_ptr().cast::<V::Elem>();
                std::ptr::copy_nonoverlapping(to.cast_const(), old, cols);
                for j in 0..NV {
                    let at = j * V::LANES;
                    V::load(old.add(at))
                        .add(V::load(sum.add(at)))
                        .store(sum.add(at));
                }
            }
            std::ptr::copy_nonoverlapping(sum.cast_const(), to, cols);
        }
    }
}

#[inline(always)]
unsafe fn sweep<V: Vector, const MR: usize, const SMALL: usize>(
    s: &Sweep<'_, V::Elem>,
    out: *mut V::Elem,
    add: bool,
) {
    let width = 2 * V::LANES;
    let mut col = 0;
    while col < s.cols {
        let cols = (s.cols - col).min(width);
        // SAFETY: `Kernel::check` covers every panel; `col / width` counts them.
        unsafe {
            let b = s.b.as_ptr().add(col / width * s.panel);
            let out = out.add(col);
            let mut row = 0;
            while row < s.rows.len() {
                let left = s.rows.len() - row;
                if cols > V::LANES {
                    if left > SMALL {
                        tile::<V, MR, 2>(s, row, left.min(MR), b, out, cols, add);
                        row += MR;
                    } else if left > 1 {
                        tile::<V, SMALL, 2>(s, row, left, b, out, cols, add);
                        row += SMALL;
                    } else {
                        tile::<V, 1, 2>(s, row, 1, b, out, cols, add);
                        row += 1;
                    }
                } else if left > SMALL {
                    tile::<V, MR, 1>(s, row, left.min(MR), b, out, cols, add);
                    row += MR;
                } else if left > 1 {
                    tile::<V, SMALL, 1>(s, row, left, b, out, cols, add);
                    row += SMALL;
                } else {
                    tile::<V, 1, 1>(s, row, 1, b, out, cols, add);
                    row += 1;
                }
            }
        }
        col += width;
    }
}

/// Eight elements in plain Rust, for every type and processor.
#[derive(Clone, Copy)]
struct Plain<T>([T; 8]);

impl<T: Arithmetic> Vector for Plain<T> {
    type Elem = T;
    const LANES: usize = 8;
    #[inline(always)]
    unsafe fn zero() -> Self {
        Plain([T::default(); 8])
    }
    #[inline(always)]
    unsafe fn splat(p: *const T) -> Self {
        // SAFETY: `p` is valid, by the contract of the trait.
        Plain([unsafe { *p }; 8])
    }
    #[inline(always)]
    unsafe fn load(p: *const T) -> Self {
        // SAFETY: eight elements at `p` are valid, by the contract of the trait.
        Plain(unsafe { p.cast::<[T; 8]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut T) {
        // SAFETY: as for `load`.
        unsafe { p.cast::<[T; 8]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, x: Self, y: Self) -> Self {
        Plain(std::array::from_fn(|i| {
            self.0[i].plus(x.0[i].times(y.0[i]))
        }))
    }
    #[inline(always)]
    unsafe fn add(self, x: Self) -> Self {
        Plain(std::array::from_fn(|i| self.0[i].plus(x.0[i])))
    }
}

/// Addition and multiplication; integers wrap around.
pub(crate) trait Arithmetic: Copy + Default + Send + Sync + 'static {
    /// `self + x`.
    fn plus(self, x: Self) -> Self;
    /// `self * x`.
    fn times(self, x: Self) -> Self;
}

macro_rules! arithmetic {
    ($($t:ty: $add:ident, $mul:ident;)*) => {
        $(impl Arithmetic for $t {
            #[inline(always)]
            fn plus(self, x: Self) -> Self { self.$add(x) }
            #[inline(always)]
            fn times(self, x: Self) -> Self { self.$mul(x) }
        })*
    };
}

use std::ops::{Add, Mul};
arithmetic! {
    f32: add, mul;
    f64: add, mul;
    num_complex::Complex32: add, mul;
    num_complex::Complex64: add, mul;
    i16: wrapping_add, wrapping_mul;
    i32: wrapping_add, wrapping_mul;
    i64: wrapping_add, wrapping_mul;
}

/// # Safety
/// `Kernel::check` must have passed.
unsafe fn plain<T: Arithmetic>(s: &Sweep<'_, T>, out: *mut T, add: bool) {
    // SAFETY: the caller's promise; plain vectors run everywhere.
    unsafe { sweep::<Plain<T>, 4, 2>(s, out, add) }
}

macro_rules! plain_loops {
    ($($t:ty),*) => {
        $(impl Tiled for $t {
            fn kernel() -> &'static Kernel<$t> {
                static PLAIN: Kernel<$t> =
                    Kernel { width: 16, lanes: 8, rows: 4, run: plain::<$t>, turn: turn_plain::<$t> };
                #[cfg(target_arch = "x86_64")]
                {
                    static V4: Kernel<$t> = Kernel { run: x86::plain_v4::<$t>, ..PLAIN };
                    static V3: Kernel<$t> = Kernel { run: x86::plain_v3::<$t>, ..PLAIN };
                    match super::wide::level() {
                        4 => return &V4,
                        3 => return &V3,
                        _ => {}
                    }
                }
                &PLAIN
            }
        })*
    };
}

plain_loops!(i16, i32, i64);

macro_rules! complex {
    ($t:ty, $v4:ident, $lanes:literal) => {
        impl Tiled for $t {
            fn kernel() -> &'static Kernel<$t> {
                static PLAIN: Kernel<$t> = Kernel {
                    width: 16,
                    lanes: 8,
                    rows: 4,
                    run: plain::<$t>,
                    turn: turn_plain::<$t>,
                };
                #[cfg(target_arch = "x86_64")]
                {
                    static V4: Kernel<$t> = Kernel {
                        width: 2 * $lanes,
                        lanes: $lanes,
                        rows: 8,
                        run: x86::$v4,
                        turn: turn_plain::<$t>,
                    };
                    static V3: Kernel<$t> = Kernel {
                        run: x86::plain_v3::<$t>,
                        ..PLAIN
                    };
                    match super::wide::level() {
                        4 => return &V4,
                        3 => return &V3,
                        _ => {}
                    }
                }
                &PLAIN
            }
        }
    };
}

complex!(num_complex::Complex32, c32_v4, 8);
complex!(num_complex::Complex64, c64_v4, 4);

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Arithmetic, Plain, Sweep, Vector, sweep};
    use num_complex::{Complex32, Complex64};
    use std::arch::x86_64::*;

    macro_rules! vectors {
        ($($name:ident: $elem:ty, $raw:ty, $lanes:literal, $zero:ident, $splat:ident, $load:ident,
           $store:ident, $fma:ident, $add:ident;)*) => {
            $(
                #[derive(Clone, Copy)]
                pub(super) struct $name($raw);

                impl Vector for $name {
                    type Elem = $elem;
                    const LANES: usize = $lanes;
                    #[inline(always)]
                    unsafe fn zero() -> Self {
                        // SAFETY: the processor has the instruction, by the trait's contract.
                        $name(unsafe { $zero() })
                    }
                    #[inline(always)]
                    unsafe fn splat(p: *const $elem) -> Self {
                        // SAFETY: as above, and `p` is valid.
                        $name(unsafe { $splat(*p) })
                    }
                    #[inline(always)]
                    unsafe fn load(p: *const $elem) -> Self {
                        // SAFETY: as above, for all lanes.
                        $name(unsafe { $load(p) })
                    }
                    #[inline(always)]
                    unsafe fn store(self, p: *mut $elem) {
                        // SAFETY: as above, for all lanes.
                        unsafe { $store(p, self.0) }
                    }
                    #[inline(always)]
                    unsafe fn mul_add(self, x: Self, y: Self) -> Self {
                        // SAFETY: the processor has the instruction.
                        $name(unsafe { $fma(x.0, y.0, self.0) })
                    }
                    #[inline(always)]
                    unsafe fn add(self, x: Self) -> Self {
                        // SAFETY: the processor has the instruction.
                        $name(unsafe { $add(self.0, x.0) })
                    }
                }
            )*
        };
    }

    vectors! {
        F32x16: f32, __m512, 16, _mm512_setzero_ps, _mm512_set1_ps, _mm512_loadu_ps,
            _mm512_storeu_ps, _mm512_fmadd_ps, _mm512_add_ps;
        F64x8: f64, __m512d, 8, _mm512_setzero_pd, _mm512_set1_pd, _mm512_loadu_pd,
            _mm512_storeu_pd, _mm512_fmadd_pd, _mm512_add_pd;
        F32x8: f32, __m256, 8, _mm256_setzero_ps, _mm256_set1_ps, _mm256_loadu_ps,
            _mm256_storeu_ps, _mm256_fmadd_ps, _mm256_add_ps;
        F64x4: f64, __m256d, 4, _mm256_setzero_pd, _mm256_set1_pd, _mm256_loadu_pd,
            _mm256_storeu_pd, _mm256_fmadd_pd, _mm256_add_pd;
    }

    /// Complex numbers, real and imaginary parts in turn.
    macro_rules! complex_vectors {
        ($($name:ident: $elem:ty, $part:ty, $raw:ty, $lanes:literal, $zero:ident, $splat:expr, $load:ident, $store:ident,
           $add:ident, $mul:ident, $fmaddsub:ident, $re:expr, $im:expr, $swap:expr;)*) => {
            $(
                #[derive(Clone, Copy)]
                pub(super) struct $name($raw);

                impl Vector for $name {
                    type Elem = $elem;
                    const LANES: usize = $lanes;
                    #[inline(always)]
                    unsafe fn zero() -> Self {
                        // SAFETY: the processor has the instruction, by the trait's contract.
                        $name(unsafe { $zero() })
                    }
                    #[inline(always)]
                    unsafe fn splat(p: *const $elem) -> Self {
                        // SAFETY: as above, and `p` is valid.
                        $name(unsafe { $splat(p) })
                    }
                    #[inline(always)]
                    unsafe fn load(p: *const $elem) -> Self {
                        // SAFETY: as above, for all lanes.
                        $name(unsafe { $load(p.cast::<$part>()) })
                    }
                    #[inline(always)]
                    unsafe fn store(self, p: *mut $elem) {
                        // SAFETY: as above, for all lanes.
                        unsafe { $store(p.cast::<$part>(), self.0) }
                    }
                    #[inline(always)]
                    unsafe fn mul_add(self, x: Self, y: Self) -> Self {
                        // SAFETY: the processor has the instructions.
                        unsafe {
                            let cross = $mul($im(x.0), $swap(y.0));
                            $name($add(self.0, $fmaddsub($re(x.0), y.0, cross)))
                        }
                    }
                    #[inline(always)]
                    unsafe fn add(self, x: Self) -> Self {
                        // SAFETY: the processor has the instruction.
                        $name(unsafe { $add(self.0, x.0) })
                    }
                }
            )*
        };
    }

    complex_vectors! {
        C32x8: Complex32, f32, __m512, 8, _mm512_setzero_ps,
            |p: *const Complex32| _mm512_castpd_ps(_mm512_set1_pd(p.cast::<f64>().read_unaligned())),
            _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, _mm512_mul_ps, _mm512_fmaddsub_ps,
            |x| _mm512_moveldup_ps(x), |x| _mm512_movehdup_ps(x), |y| _mm512_permute_ps::<0b10_11_00_01>(y);
        C64x4: Complex64, f64, __m512d, 4, _mm512_setzero_pd,
            |p: *const Complex64| _mm512_broadcast_f64x2(_mm_loadu_pd(p.cast::<f64>())),
            _mm512_loadu_pd, _mm512_storeu_pd, _mm512_add_pd, _mm512_mul_pd, _mm512_fmaddsub_pd,
            |x| _mm512_movedup_pd(x), |x| _mm512_permute_pd::<0xff>(x), |y| _mm512_permute_pd::<0x55>(y);
    }

    /// # Safety
    /// The processor must have the features and `Kernel::check` must have passed.
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
    pub(super) unsafe fn plain_v4<T: Arithmetic>(s: &Sweep<'_, T>, out: *mut T, add: bool) {
        // SAFETY: the caller's promise.
        unsafe { sweep::<Plain<T>, 4, 2>(s, out, add) }
    }

    /// # Safety
    /// As for `plain_v4`.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn plain_v3<T: Arithmetic>(s: &Sweep<'_, T>, out: *mut T, add: bool) {
        // SAFETY: the caller's promise.
        unsafe { sweep::<Plain<T>, 4, 2>(s, out, add) }
    }

    macro_rules! entries {
        ($($name:ident: $v:ty, $features:literal, $mr:literal, $small:literal;)*) => {
            $(
                /// # Safety
                /// The processor must have the features and `Kernel::check` must have passed.
                #[target_feature(enable = $features)]
                pub(super) unsafe fn $name(
                    s: &Sweep<'_, <$v as Vector>::Elem>,
                    out: *mut <$v as Vector>::Elem,
                    add: bool,
                ) {
                    // SAFETY: the caller's promise.
                    unsafe { sweep::<$v, $mr, $small>(s, out, add) }
                }
            )*
        };
    }

    /// Turns around a block of 16 by 16 floats, in registers.
    ///
    /// # Safety
    /// The processor must have AVX-512, and both blocks must be valid.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn turn_f32(from: *const f32, stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let r: [__m512; 16] = std::array::from_fn(|i| _mm512_loadu_ps(from.add(i * stride)));
            // Within each quarter of 128 bits: pairs of rows, then fours.
            let mut t = r;
            for i in 0..8 {
                t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            let mut u = t;
            for i in 0..4 {
                let [a, b, c, d] = [t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3]];
                u[4 * i] = _mm512_shuffle_ps::<0b01_00_01_00>(a, c);
                u[4 * i + 1] = _mm512_shuffle_ps::<0b11_10_11_10>(a, c);
                u[4 * i + 2] = _mm512_shuffle_ps::<0b01_00_01_00>(b, d);
                u[4 * i + 3] = _mm512_shuffle_ps::<0b11_10_11_10>(b, d);
            }
            // `u[4 * g + k]` holds column `4 * q + k` of rows `4 * g..` in its quarter `q`.
            for k in 0..4 {
                let low = _mm512_shuffle_f32x4::<0x88>(u[k], u[4 + k]);
                let high = _mm512_shuffle_f32x4::<0xdd>(u[k], u[4 + k]);
                let low2 = _mm512_shuffle_f32x4::<0x88>(u[8 + k], u[12 + k]);
                let high2 = _mm512_shuffle_f32x4::<0xdd>(u[8 + k], u[12 + k]);
                let store = |column: usize, v: __m512| {
                    _mm512_storeu_ps(to.add(column * to_stride), v);
                };
                store(k, _mm512_shuffle_f32x4::<0x88>(low, low2));
                store(k + 8, _mm512_shuffle_f32x4::<0xdd>(low, low2));
                store(k + 4, _mm512_shuffle_f32x4::<0x88>(high, high2));
                store(k + 12, _mm512_shuffle_f32x4::<0xdd>(high, high2));
            }
        }
    }

    entries! {
        f32_v4: F32x16, "avx512f", 8, 4;
        f64_v4: F64x8, "avx512f", 8, 4;
        f32_v3: F32x8, "avx2,fma", 6, 3;
        f64_v3: F64x4, "avx2,fma", 6, 3;
        c32_v4: C32x8, "avx512f,avx512dq", 8, 4;
        c64_v4: C64x4, "avx512f,avx512dq", 8, 4;
    }
}

macro_rules! simd {
    ($t:ty, $v4:ident, $v3:ident, $lanes4:literal, $lanes3:literal, $turn:expr) => {
        impl Tiled for $t {
            fn kernel() -> &'static Kernel<$t> {
                static PLAIN: Kernel<$t> = Kernel {
                    width: 16,
                    lanes: 8,
                    rows: 4,
                    run: plain::<$t>,
                    turn: turn_plain::<$t>,
                };
                #[cfg(target_arch = "x86_64")]
                {
                    static V4: Kernel<$t> = Kernel {
                        width: 2 * $lanes4,
                        lanes: $lanes4,
                        rows: 8,
                        run: x86::$v4,
                        turn: $turn,
                    };
                    static V3: Kernel<$t> = Kernel {
                        width: 2 * $lanes3,
                        lanes: $lanes3,
                        rows: 6,
                        run: x86::$v3,
                        turn: turn_plain::<$t>,
                    };
                    if std::arch::is_x86_feature_detected!("avx512f") {
                        return &V4;
                    }
                    if std::arch::is_x86_feature_detected!("avx2")
                        && std::arch::is_x86_feature_detected!("fma")
                    {
                        return &V3;
                    }
                }
                &PLAIN
            }
        }
    };
}

simd!(f32, f32_v4, f32_v3, 16, 8, x86::turn_f32);
simd!(f64, f64_v4, f64_v3, 8, 4, turn_plain::<f64>);
