package e2e

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// seen keeps output, and closes found when a text was in it.
type seen struct {
	text  string
	found chan struct{}

	mu   sync.Mutex
	b    strings.Builder
	told bool
}

func (s *seen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b.Write(p)
	if !s.told && strings.Contains(s.b.String(), s.text) {
		s.told = true
		close(s.found)
	}
	return len(p), nil
}

func (s *seen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// An interrupt in the middle of a verify takes away what was made for it,
// whether the terminal sends it to the group or somebody to the one process.
func TestVerifyInterrupted(t *testing.T) {
	for name, all := range map[string]bool{"the group": true, "the process": false} {
		t.Run(name, func(t *testing.T) {
			tmp := t.TempDir()
			cmd, _, errOut := command(t, []string{"TMPDIR=" + tmp}, "provider", "verify", "open_sandbox")
			began := make(chan struct{})
			out := &seen{text: "create.id", found: began}
			cmd.Stdout = out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			exited := make(chan error, 1)
			go func() { exited <- cmd.Wait() }()
			select {
			case <-began:
			case err := <-exited:
				t.Fatalf("it ended: %v, %s %s", err, out.String(), errOut)
			}
			to := cmd.Process.Pid
			if all {
				to = -to
			}
			if err := syscall.Kill(to, syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			if code := exitCode(t, <-exited); code != 130 || errOut.String() != "interrupted\n" || !strings.Contains(out.String(), "not-run: the run was given up") {
				t.Errorf("exit %d, %q, %s", code, errOut, out.String())
			}
			if left, err := os.ReadDir(tmp); len(left) > 0 || err != nil {
				t.Errorf("left: %v, %v", left, err)
			}
			mounts, err := os.ReadFile("/proc/self/mounts")
			if err != nil || strings.Contains(string(mounts), tmp) {
				t.Errorf("mounted below %s: %v", tmp, err)
			}
		})
	}
}

// When nobody reads the report any more, what was made is taken away as well.
func TestVerifyUnread(t *testing.T) {
	tmp := t.TempDir()
	cmd, _, errOut := command(t, []string{"TMPDIR=" + tmp}, "provider", "verify", "open_sandbox")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdout = w
	err = cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(r); lines.Scan() && !strings.Contains(lines.Text(), "create.id"); {
	}
	r.Close()
	if code := exitCode(t, cmd.Wait()); code != 130 {
		t.Errorf("exit %d, %s", code, errOut)
	}
	if left, err := os.ReadDir(tmp); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}

// What a demo is refused leaves nothing behind.
func TestDemoRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		env  []string
		args []string
		code int
		says string
	}{
		"a backend that isn't installed": {nil, []string{"--backend", "nosuch"}, 2, "open_sandbox"},
		"a backend that doesn't fit":     {[]string{"ASTRABOX_SANDBOX_DISABLE=ProcessSessions"}, nil, 1, "take ProcessSessions out of ASTRABOX_SANDBOX_DISABLE"},
		"a setting that is wrong":        {[]string{"ASTRABOX_SANDBOX_OPENAPI_TIMEOUT=soon"}, nil, 1, "ASTRABOX_SANDBOX_OPENAPI_TIMEOUT"},
	} {
		t.Run(name, func(t *testing.T) {
			tmp := t.TempDir()
			r := run(t, append(tt.env, "TMPDIR="+tmp), append([]string{"demo"}, tt.args...)...)
			if r.code != tt.code || !strings.Contains(r.out+r.errOut, tt.says) || strings.Contains(r.errOut, "was kept") {
				t.Errorf("exit %d: %s%s", r.code, r.out, r.errOut)
			}
			if left, err := os.ReadDir(tmp); len(left) > 0 || err != nil {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// What is disabled is marked, and every setting is explained without its value.
func TestProviderList(t *testing.T) {
	env := []string{"ASTRABOX_SANDBOX_DISABLE=pause", "ASTRABOX_SANDBOX_OPENAPI_KEY=hunter2", "ASTRABOX_SANDBOX_OPENAPI_BASE_URL=http://127.0.0.1:9/v1"}
	r := run(t, env, "provider", "list")
	for _, want := range []string{"Pause (disabled)", "IsolatedSessions,", "Settings of open_sandbox", "set, secret", "API key of the lifecycle service", "not set"} {
		if r.code != 0 || !strings.Contains(r.out, want) {
			t.Errorf("exit %d, no %q in %s %s", r.code, want, r.out, r.errOut)
		}
	}
	asJSON := run(t, env, "provider", "list", "--json")
	var list struct {
		Providers []struct {
			Name     string
			Disabled []string
			Settings []struct{ Name, Doc string }
		}
	}
	if err := json.Unmarshal([]byte(asJSON.out), &list); err != nil || len(list.Providers) != 1 {
		t.Fatalf("%v %s", err, asJSON.out)
	}
	if p := list.Providers[0]; len(p.Disabled) != 1 || p.Disabled[0] != "Pause" || len(p.Settings) == 0 || p.Settings[0].Doc == "" {
		t.Errorf("%+v", p)
	}
	if strings.Contains(r.out+asJSON.out, "hunter2") || strings.Contains(r.out+asJSON.out, "127.0.0.1:9") {
		t.Error("a value is shown")
	}
}
