// SPDX-License-Identifier: Apache-2.0
//! The Rust companion of noreturn.c: a panic's hook runs below the calls that do not return, and the panic is caught.
//! `noreturn panic` or `noreturn bounds`.

use std::hint::black_box;
use std::panic;

extern "C" {
    fn raise(number: i32) -> i32;
}

const SIGPROF: i32 = 27;

#[inline(never)]
fn fail_by_panic(number: usize) -> ! {
    panic!("expected {}", black_box(number))
}

#[inline(never)]
fn fail_out_of_bounds(number: usize) -> usize {
    let numbers = black_box([1, 2, 3]);
    numbers[number + 3]
}

fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    panic::set_hook(Box::new(|_| {
        unsafe { raise(SIGPROF) };
    }));
    let number = black_box(1);
    let result = panic::catch_unwind(|| match name.as_str() {
        "panic" => fail_by_panic(number),
        _ => fail_out_of_bounds(number),
    });
    assert!(result.is_err());
    println!("left");
}
