package whole_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// Create waits for a port inside the sandbox, and what listens and how much
// memory there is can be read through its commands.
func TestWaitForPort(t *testing.T) {
	m := newMachine(t)
	defer m.cleanStop()
	const port = 8081
	listens := spec("asg_1")
	listens.Entrypoint = []string{"perl", "-MIO::Socket::INET", "-e",
		"select(undef,undef,undef,0.7); $s = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1', LocalPort => 8081) or die $!; sleep 1000"}
	listens.WaitForPort = port
	start := time.Now()
	h := m.create(listens)
	if took := time.Since(start); took < 700*time.Millisecond {
		t.Errorf("it was created within %v, before anything listened", took)
	}
	ports, err := m.p.ListeningPorts(t.Context(), h)
	if err != nil || !slices.Contains(ports, port) || slices.Contains(ports, sandbox.ExecdPort) {
		t.Errorf("it listens on %v, %v", ports, err)
	}
	if room, err := m.p.MemoryHeadroom(t.Context(), h); err != nil || room.Proven() && (room.Limit != 512<<20 || room.Used == 0) {
		t.Errorf("memory %+v, %v", room, err)
	} else {
		t.Logf("memory %+v", room)
	}

	vain := spec("asg_2")
	vain.WaitForPort = port
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if h, err := m.p.Create(ctx, vain); err == nil {
		t.Errorf("%s was created although nothing listens in it", h.SandboxID())
	}
	infos, _, err := m.p.Inventory.ListSandboxes(t.Context(), map[string]string{sandbox.KeyAssignmentID: "asg_2"}, "")
	if err != nil || len(infos) > 0 {
		t.Errorf("left: %+v, %v", infos, err)
	}
}
