package conform_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform"
	"github.com/astrabox/astrabox/sandbox/sandboxfake"
)

// forgetful is a provider with a fault: its Renew tells an end that it doesn't keep.
type forgetful struct{ *sandboxfake.Provider }

func (f forgetful) Renew(ctx context.Context, id string, ttl time.Duration) (time.Time, error) {
	_, err := f.ExpiresAt(ctx, id)
	return time.Now().Add(ttl), err
}

// A program runs the clauses and prints which promise broke.
func ExampleCheck() {
	ctx := context.Background()
	fake := sandboxfake.New(sandboxfake.Options{})
	defer fake.Close()
	bound, err := sandbox.Bind(fake.Driver(), forgetful{fake})
	if err != nil {
		fmt.Println(err)
		return
	}
	live := &conform.Live{Provider: bound, Spec: func() sandbox.CreateSpec {
		limits := map[string]string{"cpu": "1", "memory": "512Mi"}
		return sandbox.CreateSpec{Image: "debian", ResourceLimits: limits, ResourceRequests: limits}
	}}
	report := conform.Check(ctx, live.Cases(), conform.Options{Provider: "forgetful", Run: regexp.MustCompile(`^(renew|pause)\.`)})
	if err := live.Close(ctx); err != nil {
		fmt.Println(err)
	}
	for _, r := range report.Clauses {
		if r.Status == conform.Failed {
			fmt.Println(r.ID+":", r.Doc)
		}
	}
	fmt.Println(report.OK())
	// Output:
	// renew.extends: Renew sets the end to now plus its ttl at least, and returns the end that holds.
	// renew.longer: Renew never shortens: a ttl that ends earlier leaves the end as it is.
	// renew.nothing: A renewal by nothing or less changes nothing.
	// renew.together: Of renewals at once the longest holds.
	// false
}

// What a report looks like to a person.
func ExampleReport_WriteText() {
	fake := sandboxfake.New(sandboxfake.Options{Capabilities: &sandbox.Capabilities{}})
	defer fake.Close()
	driver := fake.Driver()
	driver.SeamVersion = "7.0"
	cases := conform.Structural(conform.Subject{Driver: driver, Provider: fake})
	report := conform.Check(context.Background(), cases, conform.Options{Provider: "fake", Run: regexp.MustCompile(`^(driver\.seam|ids\.pause|provider\.name)$`)})
	if err := report.WriteText(os.Stdout); err != nil {
		fmt.Println(err)
	}
	// Output:
	// FAILED: driver.seam
	//   promise   The driver was built against this major version of the seam.
	//   expected  a seam version 1.x
	//   seen      "7.0"
	//
	// not-declared: Pause isn't declared, and what it would give is refused
	//   ids.pause
	//
	// fake: 1 passed, 1 failed, 0 deviations, 1 not declared, 0 skipped
}
