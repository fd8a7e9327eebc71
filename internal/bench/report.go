package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Result is one measure beside its floor, both from the same run. Times are in
// milliseconds. Ratio is value/floor, for rates (a unit per second) floor/value:
// above 1 is worse than the floor.
type Result struct {
	Name      string    `json:"name"`
	Unit      string    `json:"unit"`
	Value     float64   `json:"value"` // the median of Samples
	P99       float64   `json:"p99,omitempty"`
	N         int       `json:"n"`
	Floor     float64   `json:"floor,omitempty"`
	FloorName string    `json:"floor_name,omitempty"`
	Ratio     float64   `json:"ratio,omitempty"`
	Bound     string    `json:"bound,omitempty"` // what docs/promises.md asks of it
	Note      string    `json:"note,omitempty"`
	Samples   []float64 `json:"samples,omitempty"`
	Floors    []float64 `json:"floor_samples,omitempty"`
}

// timed makes a result of durations; floors may be empty.
func timed(name, bound string, samples []time.Duration, floorName string, floors []time.Duration) Result {
	return measured(name, "ms", bound, millis(samples), floorName, millis(floors))
}

func measured(name, unit, bound string, samples []float64, floorName string, floors []float64) Result {
	r := Result{Name: name, Unit: unit, Bound: bound, Samples: samples, N: len(samples), Value: quantile(samples, 0.5), P99: quantile(samples, 0.99)}
	if len(floors) > 0 {
		r.Floors, r.FloorName, r.Floor = floors, floorName, quantile(floors, 0.5)
		switch rate := strings.HasSuffix(unit, "/s"); {
		case r.Floor <= 0 || r.Value <= 0:
		case rate:
			r.Ratio = r.Floor / r.Value
		default:
			r.Ratio = r.Value / r.Floor
		}
	}
	return r
}

func millis(d []time.Duration) []float64 {
	out := make([]float64, len(d))
	for i, v := range d {
		out[i] = float64(v.Microseconds()) / 1000
	}
	return out
}

// quantile gives the value below which the share q of the samples lies.
func quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(samples))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

// write keeps the raw samples in dir/latest.json and prints a table.
func write(dir string, out io.Writer, results []Result) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "latest.json"), append(b, '\n'), 0o644); err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tMEDIAN\tP99\tN\tFLOOR\tRATIO\tBOUND\tNOTE")
	for _, r := range results {
		floor, ratio := "-", "-"
		if r.FloorName != "" {
			floor, ratio = fmt.Sprintf("%.2f (%s)", r.Floor, r.FloorName), fmt.Sprintf("%.2f", r.Ratio)
		}
		fmt.Fprintf(w, "%s\t%.2f %s\t%.2f\t%d\t%s\t%s\t%s\t%s\n", r.Name, r.Value, r.Unit, r.P99, r.N, floor, ratio, r.Bound, r.Note)
	}
	return w.Flush()
}
