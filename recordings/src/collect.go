// Two goroutines that build and drop trees and large buffers while the garbage collector runs beside
// them: the runtime returns memory with madvise and maps more of it, from every thread it has.
//
// usage: collect MILLISECONDS
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"time"
)

type tree struct{ left, right *tree }

func grow(depth int) *tree {
	if depth == 0 {
		return &tree{}
	}
	return &tree{grow(depth - 1), grow(depth - 1)}
}

func main() {
	milliseconds, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "usage: collect MILLISECONDS")
		os.Exit(2)
	}
	debug.SetGCPercent(50)
	end := time.Now().Add(time.Duration(milliseconds) * time.Millisecond)
	var all sync.WaitGroup
	for worker := 0; worker < 2; worker++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for round := 0; time.Now().Before(end); round++ {
				buffer := make([]byte, 4<<20)
				for at := 0; at < len(buffer); at += 4096 {
					buffer[at] = 1
				}
				runtime.KeepAlive(grow(14))
				runtime.KeepAlive(buffer)
				if round%8 == 7 {
					debug.FreeOSMemory()
				}
			}
		}()
	}
	all.Wait()
}
