package operation

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func codeOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return fmt.Sprint(err)
}

func name(r *Registry, token string) string {
	i := r.Instance()
	return fmt.Sprintf("%s.%d.%s", i.ID, i.IssuedAt, token)
}

func TestRetention(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	r := New(2, c.now)
	active, dropped := true, 0
	claim := func(n string, request byte) (Operation, bool, error) {
		return r.Claim(Command, n, [32]byte{request}, func() (Made, error) {
			return Made{Handle: "h" + n[len(n)-1:], Active: func() bool { return active }, Drop: func() { dropped++ }}, nil
		})
	}
	n1, n2, n3 := name(r, "operation1"), name(r, "operation2"), name(r, "operation3")
	op, owner, err := claim(n1, 1)
	if err != nil || !owner || op.ID != "h1" || op.State != Creating || !op.Expires.Equal(time.Unix(1000, 0).Add(Retention)) {
		t.Fatalf("%+v %v %v", op, owner, err)
	}
	if op, owner, err := claim(n1, 1); err != nil || owner || op.ID != "h1" {
		t.Errorf("again: %+v %v %v", op, owner, err)
	}
	if _, _, err := claim(n1, 2); codeOf(err) != CodeConflict {
		t.Errorf("another request: %v", err)
	}
	if _, _, err := claim(n2, 1); err != nil {
		t.Error(err)
	}
	if _, _, err := claim(n3, 1); codeOf(err) != CodeCapacity {
		t.Errorf("over capacity: %v", err)
	}
	// What is being made, or active, outlives its time.
	c.at = c.at.Add(Retention + 2*time.Second)
	r.Finish(Command, n2, false)
	for _, n := range []string{n1, n2} {
		if _, err := r.Get(Command, n); err != nil {
			t.Errorf("%s: %v", n, err)
		}
	}
	active = false
	if _, err := r.Get(Command, n2); codeOf(err) != CodeExpired {
		t.Errorf("ended: %v", err)
	}
	if _, _, err := claim(n2, 1); codeOf(err) != CodeExpired {
		t.Errorf("ended, asked for again: %v", err)
	}
	if _, err := r.Get(Command, n1); err != nil {
		t.Errorf("still being made: %v", err)
	}
	if _, owner, err := claim(name(r, "operation4"), 1); err != nil || !owner || dropped != 1 {
		t.Errorf("in the place of the forgotten: %v %v, %d dropped", owner, err, dropped)
	}
	r.Finish(Command, n1, true)
	if _, err := r.Get(Command, n1); codeOf(err) != CodeExpired {
		t.Errorf("failed long ago: %v", err)
	}
}

func TestNames(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	r := New(1, c.now)
	id := r.Instance().ID
	for n, want := range map[string]string{
		id + ".1000.12345678":     CodeNotFound,
		id + ".1001.12345678":     CodeInvalidID,
		id + ".01000.12345678":    CodeInvalidID,
		id + ".-1.12345678":       CodeInvalidID,
		id + ".1000.1234567":      CodeInvalidID,
		id + ".1000.1234567/":     CodeInvalidID,
		id + ".1000.12345678.9":   CodeInvalidID,
		id[1:] + ".1000.12345678": CodeInvalidID,
		"":                        CodeInvalidID,
		"0123456789abcdef0123456789abcdef.1000.123456_8-Z": CodeInstance,
	} {
		if _, err := r.Get(PTY, n); codeOf(err) != want {
			t.Errorf("%q: %v, want %s", n, err, want)
		}
	}
	if _, err := r.Get("file", id+".1000.12345678"); codeOf(err) != CodeKind {
		t.Error(err)
	}
	broken := errors.New("broken")
	n := id + ".1000.12345678"
	if _, _, err := r.Claim(PTY, n, [32]byte{}, func() (Made, error) { return Made{}, broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	if _, err := r.Get(PTY, n); codeOf(err) != CodeNotFound {
		t.Errorf("after a failure before the claim: %v", err)
	}
}
