package httpapi

import (
	"testing"

	"github.com/astrabox/astrabox/internal/fault"
)

func TestOpenStreamsAreBounded(t *testing.T) {
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	var release []func()
	for range maxStreams {
		_, r, err := s.openStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		release = append(release, r)
	}
	if _, _, err := s.openStream(t.Context()); !fault.Is(err, fault.TooManyRequests) {
		t.Errorf("one more: %v", err)
	}
	release[0]()
	_, r, err := s.openStream(t.Context())
	if err != nil {
		t.Fatalf("after one ended: %v", err)
	}
	s.Drain()
	for _, r := range append(release[1:], r) {
		r()
	}
	if err := s.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}
