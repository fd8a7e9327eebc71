// Package bench measures AstraBox beside raw floors in the same run, because
// only a ratio means something on a noisy machine. `astrabox bench` (make
// bench) calls it. It needs root and works in a network namespace of its own
// with fresh state directories.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/astrabox/astrabox/internal/ownnet"
)

// Options of a run.
type Options struct {
	Exe  string    // the astrabox program to measure
	Only []string  // names of results; empty: all
	Dir  string    // where latest.json goes
	N    int       // samples of the slow measures; 0: 20
	Out  io.Writer // where the table goes
}

// measure produces the results of its names.
type measure struct {
	names []string
	run   func(context.Context, Options) ([]Result, error)
}

var measures = []measure{
	{[]string{"create_first_output", "create_first_output_docker", "destroy_proven", "pause", "resume"}, lifecycle},
	{[]string{"idle_pss"}, idle},
	{[]string{"turn_overhead", "rss_idle_server", "idle_pss_shell"}, turns},
	{[]string{"execd_rss_idle"}, withDaemon(daemonMemory)},
	{[]string{"exec_true", "exec_response_end", "exec_first_output"}, withDaemon(commandTimes)},
	{[]string{"exec_rate_32"}, withDaemon(commandRate)},
	{[]string{"lines_rate"}, withDaemon(lineRate)},
	{[]string{"upload_1k", "replace_1k", "upload_256m", "download_256m", "rss_transfers"}, withDaemon(transfers)},
	{[]string{"list_10k", "rss_list_10k"}, withDaemon(listings)},
	{[]string{"tar_1g", "rss_tar_1g"}, withDaemon(archives)},
	{[]string{"stream_pipe", "stream_tty"}, withDaemon(streams)},
	{[]string{"isolated_create", "isolated_run"}, withDaemon(isolatedSessions)},
}

// Names are the measures that Options.Only may name.
func Names() []string {
	var names []string
	for _, m := range measures {
		names = append(names, m.names...)
	}
	return names
}

// Run measures what Only names, prints a table and keeps the raw samples.
func Run(ctx context.Context, o Options) error {
	if o.N <= 0 {
		o.N = 20
	}
	known := Names()
	for _, name := range o.Only {
		if !slices.Contains(known, name) {
			return fmt.Errorf("bench: no measure is called %q; there are: %s", name, strings.Join(known, ", "))
		}
	}
	err := ownnet.Run(ctx, o.Out, func(ctx context.Context) error { return inside(ctx, o) })
	if errors.Is(err, ownnet.ErrFailed) {
		return errors.New("bench: a measure failed")
	}
	return err
}

func inside(ctx context.Context, o Options) error {
	wanted := func(name string) bool { return len(o.Only) == 0 || slices.Contains(o.Only, name) }
	var results []Result
	for _, m := range measures {
		names := slices.DeleteFunc(slices.Clone(m.names), func(name string) bool { return !wanted(name) })
		if len(names) == 0 {
			continue
		}
		fmt.Fprintf(os.Stderr, "measuring %s\n", strings.Join(names, ", "))
		got, err := m.run(ctx, o)
		if err != nil {
			return err
		}
		for _, r := range got {
			if wanted(r.Name) {
				results = append(results, r)
			}
		}
	}
	return write(o.Dir, o.Out, results)
}
