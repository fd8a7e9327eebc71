package child

import (
	"os"
	"strings"
	"sync"
	"testing"
)

// However many look at once, each sees what was there when it began to.
func TestLooksAreNew(t *testing.T) {
	r := NewReaper(false)
	defer r.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd := int(null.Fd())
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				c, err := r.Start(Spec{Path: "/bin/sleep", Args: []string{"sleep", "100"}, Dir: "/", Files: []int{fd, fd, fd}, Env: []string{MarkVariable + "=looks"}})
				if err != nil {
					t.Error(err)
					return
				}
				seen := false
				l := see()
				for _, p := range l.all {
					seen = seen || p.pid == c.PID
				}
				if o := l.origin(c.PID); !seen || o.err != nil || len(o.marks) != 1 || o.marks[0] != "looks" {
					t.Errorf("process %d: seen %v, %+v", c.PID, seen, o)
				}
				if err := (Tree{Leader: c.PID, Mark: "looks of nobody"}).Kill(t.Context()); err != nil {
					t.Error(err)
				}
				if <-c.Done(); !strings.Contains(c.Exit().Signal, "KILL") {
					t.Errorf("it ended with %+v", c.Exit())
				}
			}
		})
	}
	wg.Wait()
}
