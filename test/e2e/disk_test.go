package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
)

// smallDisk makes a state directory on a file system of its own.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	need(t)
	dir := stateDir(t)
	if err := unix.Mount("astrabox-e2e", dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer unix.Unmount(dir, unix.MNT_DETACH) // where the rest has failed
		// A process that ends has let go of its files a moment after its name.
		until(t, "nobody to use the state directory", func() (bool, any) { err := unix.Unmount(dir, 0); return err == nil, err })
	})
	return dir
}

// fill takes all space that is left but spare bytes; free gives it back.
func fill(t *testing.T, dir string, spare int64) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 1<<20); len(block) > 0; {
		if _, err := f.Write(block); err != nil {
			block = block[:len(block)/2]
		}
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(info.Size() - spare); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullDisk: with no space left, what needs some fails and says so, nothing
// that was there is harmed, and all works again once there is space.
func TestFullDisk(t *testing.T) {
	s := newServer(t, options{state: smallDisk(t, "64m")})
	id := s.conversation()
	s.say(id, "echo old > note.txt; head -c 300000 /dev/zero > big")
	running := s.send(id, "until [ -e now ]; do sleep 0.02; done; "+counting(100, 0))
	s.untilRunning(id, running)
	free := fill(t, s.state, 0)

	t.Run("writing a file", func(t *testing.T) {
		err := s.write(id, "/workspace/note.txt", strings.Repeat("new ", 300_000))
		isProblem(t, err, fault.NoSpace)
		err = s.write(id, "/workspace/another.txt", strings.Repeat("new ", 300_000))
		isProblem(t, err, fault.NoSpace)
		if got, err := s.read(id, "/workspace/note.txt"); err != nil || got != "old\n" {
			t.Errorf("the old file: %q, %v", got, err)
		}
		list, err := s.api.Files(timeout(t), id, "/workspace", 2)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range list.Entries {
			names = append(names, e.Name)
		}
		if got := strings.Join(names, " "); got != "big note.txt" {
			t.Errorf("failed writes left %s", got)
		}
	})
	t.Run("a new conversation", func(t *testing.T) {
		_, err := s.api.CreateConversation(timeout(t), wire.CreateConversation{}, "")
		isProblem(t, err, fault.StorageFull)
	})
	t.Run("a message", func(t *testing.T) {
		_, err := s.api.Send(timeout(t), id, wire.SendMessage{ClientMessageID: "full", Text: "echo lost"})
		isProblem(t, err, fault.StorageFull)
	})
	t.Run("what only reads", func(t *testing.T) {
		if c := s.look(id); c.Turn == nil || c.Turn.ID != running {
			t.Errorf("%+v", c)
		}
		if _, err := s.api.Health(timeout(t)); err != nil {
			t.Error(err)
		}
	})
	t.Run("deleting", func(t *testing.T) {
		_, err := s.api.Delete(timeout(t), id)
		isProblem(t, err, fault.StorageFull)
	})
	// The command writes while nothing can be stored; it waits, and nothing is lost.
	free()
	touch(s, id, "/workspace/now")
	if v := s.wait(id, running); v.output != counted(100) || v.end.Reason != agentprogram.ReasonDone {
		t.Errorf("the turn that ran meanwhile: %+v", v)
	}
	if got := s.say(id, "cat note.txt; wc -c < big"); got != "old\n300000\n" {
		t.Errorf("afterwards: %q", got)
	}
	if err := s.write(id, "/workspace/note.txt", "new\n"); err != nil {
		t.Error(err)
	}
	s.journal(id)
	second := s.conversation()
	s.say(second, "true")
	if c, err := s.api.Delete(timeout(t), second); err != nil || c.State != model.Deleted {
		t.Errorf("deleting: %+v, %v", c, err)
	}
}

// TestSandboxWithoutRoom: a sandbox that has no room to start is taken back, and
// the message that wanted it is told why and can be sent again.
func TestSandboxWithoutRoom(t *testing.T) {
	s := newServer(t, options{state: smallDisk(t, "64m")})
	id := s.conversation()
	free := fill(t, s.state, 1<<20) // for rows, not for the Agent's program
	v := s.wait(id, s.send(id, "echo one"))
	if v.end.Reason != string(model.TurnUndelivered) || v.end.Error == nil || !strings.Contains(v.end.Error.Message, "disk is full") {
		t.Errorf("expected the message to be undelivered because the disk is full, saw %+v %+v", v.end, v.end.Error)
	}
	t.Logf("%+v", v.end.Error)
	free()
	if got := s.say(id, "echo two"); got != "two\n" {
		t.Errorf("afterwards: %q", got)
	}
	if n := len(s.pids("execd")); n != 1 {
		t.Errorf("%d sandboxes", n)
	}
}

// TestFullDiskByACommand: a sandbox that fills the disk hurts itself, and can be
// deleted.
func TestFullDiskByACommand(t *testing.T) {
	s := newServer(t, options{state: smallDisk(t, "64m")})
	id := s.conversation()
	got := s.wait(id, s.send(id, "cat /dev/zero > filler; ls -l filler | wc -l; rm filler; echo freed"))
	if !strings.Contains(got.output, "No space left on device") || !strings.HasSuffix(got.output, "1\nfreed\n") {
		t.Errorf("%+v", got)
	}
}

// TestStartOnFullDisk: a server that can't store anything says so and ends.
func TestStartOnFullDisk(t *testing.T) {
	state := smallDisk(t, "16m")
	free := fill(t, state, 0)
	refused(t, state, nil, nil, 1, "space")
	free()
	s := newServer(t, options{state: state})
	s.conversation()
}
