"""`python -m blis_jax.policies`: the reference tables of all policies, in Markdown."""

from blis_jax.policies.reference import page

if __name__ == "__main__":
    print(page(), end="")
