package killpoint

import (
	"slices"
	"testing"
)

func TestPoints(t *testing.T) {
	a, b := New("test.b"), New("test.a")
	if got := Names(); !slices.IsSorted(got) || !slices.Contains(got, "test.a") {
		t.Fatalf("Names() = %v", got)
	}
	a.Hit() // unarmed: nothing
	var hit []string
	disarm := Arm(func(name string) { hit = append(hit, name) })
	a.Hit()
	b.Hit()
	disarm()
	a.Hit()
	if want := []string{"test.b", "test.a"}; !slices.Equal(hit, want) {
		t.Fatalf("hit %v, want %v", hit, want)
	}
	defer func() {
		if recover() == nil {
			t.Error("a name was declared twice")
		}
	}()
	New("test.a")
}
