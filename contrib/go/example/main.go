// SPDX-License-Identifier: Apache-2.0

// words SECONDS repeats one round of work for that long and prints its result, the same each time.
package main

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"time"
)

func mix(value uint64, turns int) uint64 {
	for ; turns > 0; turns-- {
		value = value*2862933555777941757 + 3037000493
	}
	return value
}

func descend(seed uint64, depth int) uint64 {
	if depth == 0 {
		numbers := make([]uint64, 50)
		for index := range numbers {
			numbers[index] = mix(seed+uint64(index), 3)
		}
		sort.Slice(numbers, func(a, b int) bool { return mix(numbers[a], 9) < mix(numbers[b], 9) })
		return numbers[25]
	}
	return descend(mix(seed, depth), depth-1)*3 + uint64(depth)
}

func round(seed uint64) uint64 {
	results := make(chan uint64)
	for part := 0; part < 4; part++ {
		go func(part int) { results <- descend(seed, 20+part) }(part)
	}
	return <-results + <-results + <-results + <-results
}

func main() {
	seconds := 0.0
	if len(os.Args) > 1 {
		seconds, _ = strconv.ParseFloat(os.Args[1], 64)
	}
	start, result := time.Now(), round(7)
	for time.Since(start).Seconds() < seconds {
		if round(7) != result {
			os.Exit(1)
		}
	}
	fmt.Printf("%x\n", result)
}
