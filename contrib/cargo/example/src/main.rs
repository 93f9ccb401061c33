// SPDX-License-Identifier: Apache-2.0
//! `words SECONDS` repeats one round of work for that long and prints its result, the same each time.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

#[inline(never)]
fn mix(mut value: u64, turns: u32) -> u64 {
    for _ in 0..turns {
        value = value.wrapping_mul(2862933555777941757).wrapping_add(3037000493);
    }
    value
}

trait Shape {
    fn area(&self, seed: u64) -> u64;
}

struct Leaf(u64);
struct Pair(Box<dyn Shape>, Box<dyn Shape>);

impl Shape for Leaf {
    fn area(&self, seed: u64) -> u64 {
        mix(seed ^ self.0, 40)
    }
}

impl Shape for Pair {
    fn area(&self, seed: u64) -> u64 {
        self.0.area(seed).wrapping_mul(3) ^ self.1.area(seed + 1)
    }
}

fn tree(depth: u64) -> Box<dyn Shape> {
    if depth == 0 {
        return Box::new(Leaf(depth));
    }
    Box::new(Pair(tree(depth - 1), Box::new(Leaf(depth))))
}

#[inline(never)]
fn round(seed: u64) -> u64 {
    let mut numbers: Vec<u64> = (0..200).map(|index| mix(seed + index, 3)).collect();
    numbers.sort_by_key(|number| mix(*number, 5));
    let mut names = BTreeMap::new();
    for number in numbers {
        let mut name = String::new();
        write!(name, "{:x}", number % 977).expect("a string can grow");
        *names.entry(name).or_insert(0u64) += number % 7;
    }
    names.iter().fold(tree(12).area(seed), |sum, (name, count)| sum.wrapping_mul(31) ^ (name.len() as u64 + count))
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0.0);
    let (start, result) = (Instant::now(), round(7));
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        assert_eq!(round(7), result);
    }
    println!("{result:x}");
}
