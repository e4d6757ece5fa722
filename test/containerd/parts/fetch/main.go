// Fetch gets the daemons the containerd tests run, into the cache folder, and
// prints what each took. Arguments name single parts; without any it gets all but crio.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	start := time.Now()
	err := parts.Fetch(ctx, report, os.Args[1:]...)
	stop()
	fmt.Printf("parts: %.1f s in all\n", time.Since(start).Seconds())
	if err != nil {
		fmt.Fprintf(os.Stderr, "fetch: %v\n", err)
		os.Exit(1)
	}
}

// report prints one line for a part, and one for each origin that failed.
func report(step parts.Step) {
	for _, err := range step.Failed {
		fmt.Printf("%-10s  %v\n", step.Part.Name, err)
	}
	how := fmt.Sprintf("fetched in %.1f s", step.Took.Seconds())
	if step.Cached {
		how = "in the cache"
	}
	if step.Err != nil {
		how = fmt.Sprintf("missing after %.1f s", step.Took.Seconds())
	}
	fmt.Printf("%-10s  %-12s  %-20s  %s\n", step.Part.Name, step.Part.Version, how, step.Part.Origin)
}
