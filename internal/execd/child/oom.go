package child

import (
	"os"
	"strconv"
	"strings"
)

// oomScore changes the daemon's own oom_score_adj around a fork. Raising needs
// no privilege, and neither does going back down to where it was.
type oomScore struct {
	f   *os.File
	was string
}

// openOOMScore gives nil where the kernel has no such file or the daemon's
// score is at least OOMScore already.
func openOOMScore() *oomScore {
	f, err := os.OpenFile("/proc/self/oom_score_adj", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	b := make([]byte, 16)
	n, err := f.Read(b)
	was := strings.TrimSpace(string(b[:max(n, 0)]))
	score, convErr := strconv.Atoi(was)
	if err != nil || convErr != nil || score >= OOMScore {
		f.Close()
		return nil
	}
	return &oomScore{f: f, was: was}
}

// set can't do anything about a failure: the child then merely runs with the
// daemon's score.
func (o *oomScore) set(score int) { _, _ = o.f.WriteAt([]byte(strconv.Itoa(score)), 0) }

func (o *oomScore) restore() { _, _ = o.f.WriteAt([]byte(o.was), 0) }

func (o *oomScore) close() { o.f.Close() }
