//! The allocator of the program. Large buffers (bodies of requests, results, collected files) are mappings of their own, so that
//! their memory goes back to the system the moment they are freed. An ordinary allocator keeps much of it: after a few bodies
//! of 15 MB, glibc held 190 MB and dlmalloc 70 MB that nothing used. `mremap` also lets a buffer grow without a second copy of it.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ptr::null_mut;

use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

/// From this size on, an allocation is a mapping. It takes a fault for each page, which is less than the work of
/// filling so many pages.
const LARGE: usize = 256 << 10;
/// Mappings begin at a page; the smallest size of a page is this.
const PAGE: usize = 4096;

/// Leaves all but large allocations to another allocator.
#[derive(Debug)]
pub struct Allocator<A>(
    /// The one for small allocations.
    pub A,
);

// SAFETY: a layout decides alone which of the two allocators has an allocation, and the caller of each method passes the
// layout that it allocated with; so each allocation is returned where it came from. `A` is a sound allocator, and mappings
// are page-aligned, at least as long as asked for, and belong to nobody else until they are unmapped.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Allocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return map(layout.size());
        }
        // SAFETY: the caller keeps to the contract of `alloc`, which is passed on as it is.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            // The kernel fills new pages with zeros.
            return map(layout.size());
        }
        // SAFETY: as in `alloc`.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if is_large(layout) {
            // SAFETY: `map` or `remap` made a mapping of this size at this address, and the caller gives it up.
            let unmapped = unsafe { munmap(pointer.cast(), layout.size()) };
            debug_assert!(unmapped.is_ok(), "an allocation of our own cannot be unmapped");
            return;
        }
        // SAFETY: a small allocation came from there with the same layout.
        unsafe { self.0.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that `size`, rounded up to the alignment, does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_large(layout), is_large(wanted)) {
            // SAFETY: a small allocation came from there with the same layout, and stays a small one.
            (false, false) => unsafe { self.0.realloc(pointer, layout, size) },
            // SAFETY: the mapping is one of ours, and the caller uses only the returned address afterwards.
            (true, true) => unsafe { remap(pointer, layout.size(), size) },
            // SAFETY: the contract of `realloc` includes all that `relocate` asks for.
            (true, false) | (false, true) => unsafe { self.relocate(pointer, layout, wanted) },
        }
    }
}

impl<A: GlobalAlloc> Allocator<A> {
    /// Moves an allocation to the other allocator.
    ///
    /// # Safety
    /// As [`GlobalAlloc::realloc`].
    unsafe fn relocate(&self, pointer: *mut u8, layout: Layout, wanted: Layout) -> *mut u8 {
        // SAFETY: the size is not 0, by the contract of `realloc`.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: both have at least so many bytes, and an allocation that is new overlaps with no other.
            unsafe { pointer.copy_to_nonoverlapping(moved, layout.size().min(wanted.size())) };
            // SAFETY: the caller gives up the old allocation, of this layout.
            unsafe { self.dealloc(pointer, layout) };
        }
        moved
    }
}

fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= PAGE
}

/// New memory, or null if there is none.
fn map(size: usize) -> *mut u8 {
    // SAFETY: without an address the kernel picks one that nothing else uses.
    let mapped =
        unsafe { mmap_anonymous(null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    mapped.map_or(null_mut(), <*mut c_void>::cast)
}

/// Makes a mapping longer or shorter; null, with the mapping as it was, if that cannot be.
///
/// # Safety
/// The mapping is one that [`map`] made, of that size, and only the returned address is used afterwards.
unsafe fn remap(pointer: *mut u8, size: usize, wanted: usize) -> *mut u8 {
    // SAFETY: as the caller guarantees; the kernel rounds both sizes up to whole pages, as it did in `map`.
    let moved = unsafe { mremap(pointer.cast(), size, wanted, MremapFlags::MAYMOVE) };
    moved.map_or(null_mut(), <*mut c_void>::cast)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::System;

    const SIZES: [usize; 8] = [1, 4096, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE, 40 * LARGE, 100];

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }

    /// Whether an address belongs to a mapping of this process.
    fn is_mapped(pointer: *mut u8) -> bool {
        let address = pointer as usize;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| {
            let (from, to) = line.split(' ').next().and_then(|range| range.split_once('-')).unwrap();
            let parse = |text| usize::from_str_radix(text, 16).unwrap();
            (parse(from)..parse(to)).contains(&address)
        })
    }

    #[test]
    fn an_allocation_keeps_its_bytes_whatever_size_it_gets() {
        let allocator = Allocator(System);
        for first in SIZES {
            for second in SIZES {
                // SAFETY: every pointer is used with the layout that it was allocated with, within its size.
                #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one story")]
                unsafe {
                    let pointer = allocator.alloc(layout(first));
                    (0..first).for_each(|at| pointer.add(at).write(at.to_le_bytes()[0]));
                    let pointer = allocator.realloc(pointer, layout(first), second);
                    let kept = (0..first.min(second)).all(|at| pointer.add(at).read() == at.to_le_bytes()[0]);
                    assert!(kept, "from {first} to {second}");
                    pointer.add(second - 1).write(1);
                    allocator.dealloc(pointer, layout(second));
                }
            }
        }
    }

    #[test]
    fn what_is_to_be_zero_is() {
        let allocator = Allocator(System);
        for size in SIZES {
            // SAFETY: as above.
            #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one story")]
            unsafe {
                let pointer = allocator.alloc_zeroed(layout(size));
                assert!((0..size).all(|at| pointer.add(at).read() == 0));
                allocator.dealloc(pointer, layout(size));
            }
        }
    }

    #[test]
    fn a_large_buffer_goes_back_to_the_system() {
        let allocator = Allocator(System);
        // SAFETY: as above; the address is only compared after it was freed.
        #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one story")]
        unsafe {
            let pointer = allocator.alloc(layout(4096 * LARGE));
            assert!(is_mapped(pointer.add(2048 * LARGE)));
            allocator.dealloc(pointer, layout(4096 * LARGE));
            assert!(!is_mapped(pointer.wrapping_add(2048 * LARGE)));
        }
    }
}
