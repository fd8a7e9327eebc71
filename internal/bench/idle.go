package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/astrabox/astrabox/sandbox"
)

// idleBoxes is how many sandboxes share execd's pages while they are measured.
const idleBoxes = 20

// idle measures the memory of sandboxes in which nothing runs: the PSS of all
// their processes, divided by their number.
func idle(ctx context.Context, o Options) (_ []Result, err error) {
	s, err := newService(ctx, o.Exe)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	var ids []string
	for range idleBoxes {
		h, err := s.Create(ctx, spec())
		if err != nil {
			return nil, err
		}
		ids = append(ids, h.SandboxID())
	}
	r, err := pssOf("idle_pss", ids)
	return []Result{r}, err
}

func pssOf(name string, ids []string) (Result, error) {
	var samples []float64
	for _, id := range ids {
		n, err := pss(id)
		if err != nil {
			return Result{}, err
		}
		samples = append(samples, float64(n)/(1<<20))
	}
	r := measured(name, "MiB", "<= 8 MB", samples, "", nil)
	var sum float64
	for _, v := range samples {
		sum += v
	}
	r.Value = sum / float64(len(samples)) // the mean: shared pages count in parts
	r.Note = "mean"
	return r, nil
}

// pss sums the proportional set size of a sandbox's processes, in bytes.
func pss(sandboxID string) (int64, error) {
	procs, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return 0, err
	}
	var total int64
	for _, p := range procs {
		b, err := os.ReadFile(p)
		if err != nil || !strings.Contains(string(b), sandboxID) {
			continue // ended meanwhile, or another's
		}
		n, err := rollup(filepath.Join(filepath.Dir(p), "smaps_rollup"))
		if err != nil {
			return 0, err
		}
		total += n
	}
	if total == 0 {
		return 0, fmt.Errorf("bench: sandbox %s has no process", sandboxID)
	}
	return total, nil
}

func rollup(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "Pss:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("bench: %s has no Pss", path)
}

// destroyAll destroys every sandbox of the service, with proof.
func (s *service) destroyAll(ctx context.Context) error {
	for page := ""; ; {
		infos, next, err := s.Inventory.ListSandboxes(ctx, nil, page)
		if err != nil {
			return err
		}
		for _, i := range infos {
			if d := sandbox.ConfirmDestroyed(ctx, s.Bound, i.ID); d.Outcome != sandbox.Gone {
				return fmt.Errorf("destroy %s: %s: %s", i.ID, d.Outcome, d.Detail)
			}
		}
		if next == "" {
			return nil
		}
		page = next
	}
}
