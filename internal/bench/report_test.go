package bench

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestQuantile(t *testing.T) {
	for _, tt := range []struct {
		in   []float64
		q    float64
		want float64
	}{
		{nil, 0.5, 0},
		{[]float64{7}, 0.99, 7},
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{4, 3, 2, 1}, 0.99, 4},
	} {
		if got := quantile(tt.in, tt.q); got != tt.want {
			t.Errorf("quantile(%v, %v) = %v, want %v", tt.in, tt.q, got, tt.want)
		}
	}
}

func TestWriteKeepsSamplesAndRatio(t *testing.T) {
	dir := t.TempDir()
	ms := func(n ...int) (d []time.Duration) {
		for _, v := range n {
			d = append(d, time.Duration(v)*time.Millisecond)
		}
		return d
	}
	in := []Result{timed("create_first_output", "<= 2.0", ms(80, 100, 90), "runc_run", ms(45, 40, 50))}
	var table strings.Builder
	if err := write(dir, &table, in); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(table.String(), "2.00") {
		t.Errorf("the table lacks the ratio:\n%s", table.String())
	}
	b, err := os.ReadFile(filepath.Join(dir, "latest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var out []Result
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(in, out); d != "" {
		t.Error(d)
	}
}
